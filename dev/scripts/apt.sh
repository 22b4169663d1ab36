# Sourced by the scripts that install Debian packages; they have `say`.

# install PACKAGE...: with apt-get if that is possible without a question, else says what is missing and ends.
# `elsewhere` may hold what to tell users of other systems.
install() {
  local as_root=() log
  log=.cache/$(basename "$0" .sh)-apt.log
  if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
  fi
  if ! command -v apt-get >/dev/null || ! "${as_root[@]}" true 2>/dev/null; then
    say "missing, and not installable from here: $*"
    say "on Debian or Ubuntu: sudo apt-get install $*"
    if [ -n "${elsewhere:-}" ]; then
      say "elsewhere: $elsewhere"
    fi
    exit 1
  fi
  mkdir -p .cache
  say "apt-get install $*"
  if ! {
    "${as_root[@]}" apt-get -q update &&
      "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "$@"
  } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "apt-get did not install $*; its whole output is in $log"
    exit 1
  fi
}
