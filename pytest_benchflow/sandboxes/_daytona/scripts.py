"""What runs inside a Daytona sandbox to see a command through: POSIX sh, and files in a directory of its own.

The toolbox's own sessions give a command neither input nor bytes, and a connection to one may break. So a command's
input, output and exit code are files: whoever comes back reads on from where it was.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._pipes import HEAD_BYTES, TAIL_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUN_VARIABLE = "BENCHFLOW_RUN"

# $1 the command's mark. Programs that hide their variables are found when the phase ends.
_COUNT = """\
left() { set -- $(grep -lsF "$1" /proc/[0-9]*/environ 2>/dev/null); echo $#; }
"""

# The shell says what is wrong with a directory; the exit codes are those of a shell, too.
_COMMAND = """\
command() { cd {cwd} || exit 126; exec {argv}; }
"""

_TO_ITS_END = """\
( command ) <{stdin} >out 2>err
code=$?
for name in out err; do
    size=$(wc -c <$name)
    if [ "$size" -gt {most} ]; then
        { head -c {head} $name; tail -c {tail} $name; } >$name.kept
    else
        mv $name $name.kept
    fi
    echo "$size"
done >sizes
left {mark} >left
echo $code >code.new
mv code.new code
"""

_ALIVE = """\
: >in
mkfifo end
# Whoever reads it sees its end when this shell is gone, however that happened.
exec 8<>end
sleep 2147483647 8>&- >/dev/null 2>&1 &
holder=$!
echo $holder >feeder
# Input ends when the holder is gone and all of the file has been passed on.
feed() {
    if tail --version >/dev/null 2>&1; then
        exec tail --pid=$holder -s 0.2 -c +1 -f in
    fi
    at=1
    while :; do
        size=$(wc -c <in)
        if [ "$size" -ge $at ]; then
            tail -c +$at in | head -c $((size - at + 1)) || exit
            at=$((size + 1))
        else
            kill -0 $holder 2>/dev/null || exit
            sleep 0.2 2>/dev/null || sleep 1
        fi
    done
}
( feed ) 8>&- 2>/dev/null | {
    ( command ) 8>&- >out 2>err
    echo $? >code.new
    kill $holder
    mv code.new code
}
"""

# A window on a live command: what comes in is its input, what goes out its output from byte $2 on.
BRIDGE = """\
cd "$1" || exit
[ ! -t 0 ] || stty raw -echo
# Before there is any output the pipe may not be there, and opening it would make a file in its place.
until [ -e out ]; do sleep 0.05 2>/dev/null || sleep 1; done
exec 8<>end
exec 7<end
exec 8>&-
exec 3<&0
printf '\\nwindow: %s\\n' "$3"
cat <&3 >>in 7<&- &
feed=$!
tail -c "+$2" -f out 7<&- &
show=$!
[ -e code ] || read -r _ <&7
kill $feed $show
"""

# $1 a command's directory, $2 the first byte of its stderr that is wanted. One line of numbers, then base64.
LOOK = """\
cd "$1" || exit
echo "$(cat code 2>/dev/null || echo -) $(wc -c <in) $(wc -c <out)"
tail -c "+$2" err | head -c 262144 | base64
"""

# $1 a mark: kill what carries it and what descends from that, until there is nothing of it left.
KILL = """\
tries=0
while :; do
    found=" $(grep -lsF "$1" /proc/[0-9]*/environ 2>/dev/null | sed 's,/proc/,,; s,/environ,,' | tr '\\n' ' ')"
    more=yes
    while [ "$more" ]; do
        more=
        for stat in /proc/[0-9]*/stat; do
            read -r line 2>/dev/null <"$stat" || continue
            pid=${line%% *}
            set -- "$1" ${line##*) }
            case $2 in Z | X) continue ;; esac
            case $found in *" $pid "*) continue ;; esac
            case $found in *" $3 "*) found="$found$pid "; more=yes ;; esac
        done
    done
    [ "$(echo $found)" ] || { echo none; exit; }
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "left: $(echo $found)"; exit; }
    kill -9 $found 2>/dev/null
    sleep 0.02 2>/dev/null || :
done
"""

# Prints "pid:start" of every process, which is what belongs to the sandbox itself before anything of ours ran.
PROCESSES = """\
for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    pid=${line%% *}
    set -- ${line##*) }
    echo "$pid:${20}"
done
"""

# $1 the processes that stay, as " pid:start ". Everything else is killed but this shell and what it descends from.
# In a machine's own namespace of processes others' would be among them: there only marks count, and it says so.
END_PHASE = """\
[ "$(readlink /proc/self/ns/pid)" != "pid:[4026531836]" ] || { echo shared; exit; }
own=" $$ "
up=$$
while [ "${up:-0}" -gt 1 ]; do
    read -r line <"/proc/$up/stat" || break
    set -- "$1" ${line##*) }
    up=$3
    own="$own$up "
done
tries=0
while :; do
    found=
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        pid=${line%% *}
        set -- "$1" ${line##*) }
        case $2 in Z | X) continue ;; esac
        case $own in *" $pid "*) continue ;; esac
        case $1 in *" $pid:${21} "*) continue ;; esac
        found="$found $pid"
    done
    [ "$found" ] || { echo none; exit; }
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo "left:$found"; exit; }
    kill -9 $found 2>/dev/null
    sleep 0.02 2>/dev/null || :
done
"""


def program(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str, ids: str, mark: str, stdin: str | None, directory: str
) -> str:
    """Return the script of one command. `stdin` is a file's name, None: it is fed while it lives.

    `ids` is "uid gid" of whom it runs as, empty for root.
    """
    words = ["env", *(f"{name}={value}" for name, value in {**env, RUN_VARIABLE: mark}.items()), *argv]
    if ids:
        uid, _, gid = ids.partition(" ")
        words = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", *words]
    command = _COMMAND.replace("{cwd}", shlex.quote(cwd)).replace("{argv}", shlex.join(words))
    start = f"cd {shlex.quote(directory)} || exit\necho $$ >pid\n"
    if stdin is None:
        return start + command + _ALIVE
    body = _TO_ITS_END
    for name, value in (
        ("stdin", shlex.quote(stdin)),
        ("most", str(HEAD_BYTES + TAIL_BYTES)),
        ("head", str(HEAD_BYTES)),
        ("tail", str(TAIL_BYTES)),
        ("mark", shlex.quote(f"{RUN_VARIABLE}={mark}")),
    ):
        body = body.replace(f"{{{name}}}", value)
    return start + _COUNT + command + body


def one_shot(script: str, *words: str) -> str:
    """Return a script with its arguments as one command of the toolbox."""
    return shlex.join(["sh", "-c", script, "sh", *words])
