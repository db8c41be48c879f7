"""What runs on a plain far machine, as POSIX sh."""

from __future__ import annotations

FREE = "benchflow-free"

# $1 the directory, then the command.
RUN = 'cd "$1" || exit 126; shift; exec "$@"'

# $1 is how the variables of what must die begin; whoever hides its variables is not found.
KILL = """\
turn=0
while [ $turn -lt 100 ]; do
    left=$(grep -lasF -- "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3)
    [ -n "$left" ] || exit 0
    kill -KILL $left 2>/dev/null
    turn=$((turn + 1))
    sleep 0.05
done
echo $left
exit 1
"""

_STATE = "state=/var/tmp/benchflow-rollout\n"

# $1 the rollout's key, then the directories it needs. What it makes is written down first, for who cleans up.
LAY_OUT = (
    _STATE
    + """\
key=$1
shift
umask 022
if ! mkdir "$state" 2>/dev/null; then
    echo "another rollout is on this machine, or a killed one left $state and what it lists" >&2
    exit 3
fi
echo "$key" >"$state/key"
: >"$state/made"
for place; do
    [ -d "$place" ] && [ -z "$(ls -A "$place")" ] && continue
    case $place in /logs/*) [ -e "$state/logs" ] && continue;; esac
    if [ -e "$place" ] || { [ "${place#/logs/}" != "$place" ] && [ -e /logs ]; }; then
        echo "$place is there already, and is not a rollout's; a machine for rollouts has none" >&2
        rm -r "$state"
        exit 3
    fi
    case $place in /logs/*) : >"$state/logs";; esac
    top=$place
    while up=$(dirname "$top"); [ ! -e "$up" ]; do top=$up; done
    echo "$top" >>"$state/made"
done
for place; do
    mkdir -p "$place" || exit 3
    case $place in /logs/*) chmod 777 "$place";; esac
done
"""
)

# $1 the rollout's key.
CLEAR = (
    _STATE
    + """\
[ "$(cat "$state/key" 2>/dev/null)" = "$1" ] || exit 0
while read -r place; do
    rm -rf -- "$place" 2>/dev/null || { chmod -R u+rwx -- "$place"; rm -rf -- "$place"; } || exit 1
done <"$state/made"
rm -r "$state"
"""
)

# $1 the rollout's key, $2 name and version, $3 the script: /opt/benchflow becomes what is kept for all rollouts.
INSTALLED = """\
sum=$(printf %s "$3" | cksum | cut -d ' ' -f 1)
cache=${BENCHFLOW_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-benchflow}/machine/$2-$sum
[ -e "$cache/.complete" ] || rm -rf "$cache"
mkdir -p "$cache/home" && rmdir /opt/benchflow && ln -s "$cache" /opt/benchflow || exit 1
[ -e "$cache/.complete" ] && echo there
exit 0
"""

KEEP = ": >/opt/benchflow/.complete"

# $1 what to bring; 44: there is no such file.
FETCH = """\
[ -L "$1" ] && exit 44
[ -f "$1" ] || [ -d "$1" ] || exit 44
cd "$(dirname "$1")" && exec tar -cf - -- "$(basename "$1")"
"""
