#!/usr/bin/env bash
# A Slurm cluster of three nodes on this machine, from Debian's packages: munge, slurmctld and three slurmd.
#
#   e2e-slurm.sh run COMMAND...   starts a cluster, runs the command with SLURM_CONF and KILN_SLURM_CLUSTER set, and takes the cluster down;
#                                 Slurm's logs are copied to the folder KILN_SLURM_LOGS, if it is set
#   e2e-slurm.sh up DIR           starts one in DIR
#   e2e-slurm.sh down DIR         ends everything of it
#   e2e-slurm.sh start DIR NAME   starts one daemon again: slurmctld, n1, n2 or n3
#
# It needs to be root, as slurmd does. Only processes that belong to the cluster are ended: by their pid files, and by the
# path of its slurm.conf in their environment.
set -euo pipefail

say() { echo "e2e-slurm: $*" >&2; }

nodes=(n1 n2 n3)
port=${KILN_SLURM_PORT:-26817}

need() {
  local missing=() tool
  for tool in munged slurmctld slurmd sbatch squeue; do
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    cd "$(dirname "$0")/../.."
    # shellcheck source=dev/scripts/apt.sh
    . dev/scripts/apt.sh
    install munge slurmctld slurmd slurm-client
    cd - >/dev/null
  fi
}

# start DIR NAME: one daemon.
start() {
  export SLURM_CONF=$1/slurm.conf
  case $2 in
    slurmctld) (cd "$1" && slurmctld) ;;
    *) (cd "$1" && slurmd -N "$2") ;;
  esac
}

up() {
  local dir=$1 host i
  host=$(hostname -s)
  mkdir -p "$dir/state" "$dir/log"
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.sock" --pid-file="$dir/munge.pid" --log-file="$dir/log/munge.log" --seed-file="$dir/munge.seed"
  cat >"$dir/slurm.conf" <<CONF
ClusterName=kiln
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.sock
SlurmctldPidFile=$dir/slurmctld.pid
SlurmctldLogFile=$dir/log/slurmctld.log
StateSaveLocation=$dir/state
SlurmdPidFile=$dir/%n.pid
SlurmdLogFile=$dir/log/%n.log
SlurmdSpoolDir=$dir/spool-%n
SlurmdParameters=config_overrides
# Control groups are not everywhere where this runs; memory is placed by, not enforced.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=bf_interval=5
SlurmctldTimeout=10
SlurmdTimeout=8
KillWait=10
MinJobAge=60
ReturnToService=2
# A job of the partition urgent puts others back into the queue.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
CONF
  i=0
  for node in "${nodes[@]}"; do
    i=$((i + 1))
    mkdir -p "$dir/spool-$node"
    echo "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=2 RealMemory=4000" >>"$dir/slurm.conf"
  done
  echo "PartitionName=main Nodes=n[1-3] Default=YES MaxTime=60 State=UP" >>"$dir/slurm.conf"
  echo "PartitionName=short Nodes=n[1-3] MaxTime=2 State=UP" >>"$dir/slurm.conf"
  echo "PartitionName=urgent Nodes=n[1-3] MaxTime=2 PriorityTier=10 State=UP" >>"$dir/slurm.conf"
  start "$dir" slurmctld
  for node in "${nodes[@]}"; do
    start "$dir" "$node"
  done
  export SLURM_CONF=$dir/slurm.conf
  for _ in $(seq 60); do
    if [ "$(sinfo -h -p main -t idle -o %D 2>/dev/null)" = 3 ]; then
      return 0
    fi
    sleep 1
  done
  say "the nodes did not become idle"
  sinfo >&2 || true
  tail -n 5 "$dir"/log/*.log >&2 || true
  return 1
}

# members DIR: the processes of the cluster.
members() {
  local p
  for p in /proc/[0-9]*; do
    if { tr '\0' '\n' <"$p/environ"; } 2>/dev/null | grep -qxF "SLURM_CONF=$1/slurm.conf"; then
      # The script itself, and what it runs, have the variable too.
      case $(cat "$p/comm" 2>/dev/null) in
        slurm* | sh | kiln*) echo "${p#/proc/}" ;;
      esac
    fi
  done
}

down() {
  local dir=$1 pid file
  unset SLURM_CONF
  for file in "$dir"/n?.pid "$dir/slurmctld.pid" "$dir/munge.pid"; do
    if [ -f "$file" ] && pid=$(cat "$file") && [ -n "$pid" ] && [ -d "/proc/$pid" ]; then
      kill -9 "$pid" 2>/dev/null || true
    fi
  done
  for pid in $(members "$dir"); do
    kill -9 "$pid" 2>/dev/null || true
  done
}

case ${1:-} in
  up) need; up "$2" ;;
  down) down "$2" ;;
  start) start "$2" "$3" ;;
  run)
    shift
    need
    dir=$(mktemp -d)
    trap 'down "$dir"; rm -rf "$dir"' EXIT
    up "$dir"
    status=0
    SLURM_CONF=$dir/slurm.conf KILN_SLURM_CLUSTER=$dir "$@" || status=$?
    if [ "$status" != 0 ]; then
      tail -n 20 "$dir"/log/slurmctld.log >&2 || true
    fi
    if [ -n "${KILN_SLURM_LOGS:-}" ]; then
      cp -r "$dir/log/." "$KILN_SLURM_LOGS/"
    fi
    exit "$status"
    ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
