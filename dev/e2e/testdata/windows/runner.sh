# Read by the shell of every step (BASH_ENV). Jobs with a row run on Windows, the others on Linux.
if [ -n "${ROW:-}" ]; then
  RUNNER_OS=Windows
  PATH=/programs:$PATH
fi
