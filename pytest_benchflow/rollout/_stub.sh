#!/bin/sh
# Stand in, inside a sandbox, for a program that is not installed: record the call and end. Copies of this file lie where
# launch commands look for programs, and each acts by the name it is called by. An interpreter runs what it is given as
# text or finds as a file; a script that is not there counts as the agent itself.
# Its variables have names of their own: what it goes on as must find the caller's as they were.
# shellcheck disable=SC2154
parity=/opt/benchflow/parity
# Sets parity_path, parity_python, parity_bash, parity_exit and, in a run that is traced, parity_trace.
# shellcheck source=/dev/null
. "$parity/run"

parity_record() (
  PATH=$parity_path
  number=1
  until mkdir "$parity/calls/$number" 2>/dev/null; do number=$((number + 1)); done
  call=$parity/calls/$number
  # As the kernel has them: a shell drops names that it cannot spell.
  cat "/proc/$$/cmdline" >"$call/cmdline"
  cat "/proc/$$/environ" >"$call/environ"
  pwd -P >"$call/cwd"
  [ ! -p /proc/self/fd/1 ] || : >"$call/captured"
  [ -z "${1-}" ] || printf %s "$1" >"$call/missing"
  head -c 1048577 >"$call/stdin"
)

# Tell whether an interpreter is given text, or a file or module that is there.
parity_runs_text() {
  while [ $# -gt 0 ]; do
    case $1 in
    - | --eval* | --print* | --version | --help) return 0 ;;
    --*) ;;
    -*)
      case $parity_kind$1 in
      sh*[cs]* | python*[cVh]* | node*[epvh]*) return 0 ;;
      python*m*)
        parity_module=${1#*m}
        parity_module=${parity_module:-${2-}}
        "$parity_python" -IS -c 'import sys; sys.exit(sys.argv[1] not in sys.stdlib_module_names)' "${parity_module%%.*}"
        return
        ;;
      sh*[oO] | python*[XW] | node*[rC]) [ $# -lt 2 ] || shift ;;
      esac
      ;;
    *)
      [ -e "$1" ]
      return
      ;;
    esac
    shift
  done
}

# Go on as a shell that says what it runs, where it runs text or a file.
parity_traced() {
  if [ "${1-}" = -c ] && [ $# -gt 1 ]; then
    parity_text=$2
    shift 2
    [ $# -gt 0 ] || set -- sh
    exec "$parity_bash" --posix -c "$parity_trace$parity_text" "$@"
  fi
  # shellcheck disable=SC2016
  [ ! -f "${1-}" ] ||
    exec "$parity_bash" --posix -c "f=\$1; shift; case \$f in */*) ;; *) f=./\$f ;; esac; $parity_trace. \"\$f\"" sh "$@"
}

parity_name=${0##*/}
case $parity_name in
mktemp)
  # The same name in every run.
  parity_made=$(PATH=$parity_path && mktemp "$@") || exit
  printf . >>"$parity/temporary"
  parity_named=temporary-$(PATH=$parity_path && wc -c <"$parity/temporary" | tr -d ' ')
  case $parity_made in */*) parity_named=${parity_made%/*}/$parity_named ;; esac
  [ ! -e "$parity_made" ] || (PATH=$parity_path && mv "$parity_made" "$parity_named") || exit
  printf '%s\n' "$parity_named"
  exit
  ;;
sh | bash | dash) parity_kind="sh" ;;
python | python[0-9]*) parity_kind=python ;;
node) parity_kind=node ;;
*) parity_kind= ;;
esac
if [ -n "$parity_kind" ] && parity_runs_text "$@"; then
  [ "$parity_kind" != sh ] || [ -z "$parity_trace" ] || parity_traced "$@"
  parity_real=$parity_python
  [ "$parity_kind" = python ] || parity_real=$(PATH=$parity_path && command -v "$parity_name") || {
    parity_record "it runs $parity_name, which this sandbox has not"
    exit 127
  }
  exec "$parity_real" "$@"
fi
parity_record
exit "$parity_exit"
