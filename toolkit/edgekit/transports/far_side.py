"""What the ssh transport runs on the far side: constant POSIX shell scripts that take everything as arguments.

They hold no single quotes, backslashes or exclamation marks, so that login shells with other quoting (fish) pass them
on whole. Answers stand in a line that begins with `MARK`: login shells print things of their own.
"""

from __future__ import annotations

MARK = "edgekit: "

HOLD = """
umask 077
root="${XDG_CACHE_HOME:-$HOME/.cache}/edgekit/device"
work="$root/$1"
lock="$root/lock"
mkdir -p -- "$work" || exit 1
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
tries=0
until mkdir -- "$lock" 2>/dev/null; do
    pid=$(cat "$lock/pid" 2>/dev/null)
    if [ -n "$pid" ] && [ "$(cat "$lock/boot" 2>/dev/null)" = "$boot" ] && kill -0 "$pid" 2>/dev/null; then
        if [ "$(cat "$lock/owner" 2>/dev/null)" = "$2" ] && [ "$tries" -le 3 ]; then
            kill "$pid" 2>/dev/null
            tries=$((tries + 1))
            sleep 1
            continue
        fi
        echo "edgekit: held $(cat "$lock/owner" 2>/dev/null) (process $pid there)"
        exit 1
    fi
    tries=$((tries + 1))
    [ "$tries" -gt 5 ] && { echo "edgekit: held by nobody, but $lock cannot be removed"; exit 1; }
    if [ -z "$pid" ] && [ "$tries" -le 2 ]; then
        sleep 1
    elif mv -- "$lock" "$lock.$$" 2>/dev/null; then
        if [ "$(cat "$lock.$$/pid" 2>/dev/null)" = "$pid" ]; then
            rm -rf -- "$lock.$$"
        else
            mv -- "$lock.$$" "$lock"
        fi
    fi
done
trap "exit 1" HUP INT TERM PIPE
release() { rm -rf -- "$lock"; }
trap release EXIT
echo "$boot" >"$lock/boot"
echo "$2" >"$lock/owner"
echo "$$" >"$lock/pid"
touch -- "$work"
rm -rf -- "$work"/job-*
find "$root" "$work" -mindepth 1 -maxdepth 1 -mtime +14 -exec rm -rf -- {} +
echo "edgekit: work $work"
while read -r line; do :; done
"""
"""$1 work folder's name, $2 who we are. Holds the machine's lock until standard input closes.

The lock is a folder with the holder's process id: a lock whose process is gone (killed, or before a reboot) is
stale. It is moved away, and kept away only if it is still the one that was looked at. A lock of the same owner is left
from a link that went silent: its holder is ended. What was unused for two weeks goes, and the data of jobs at once: as
the lock is ours, whoever sent it is gone.
"""

PYTHONS = """
check=$1
shift
if [ "$#" -eq 0 ]; then
    set -- "$HOME/.edgekit/bin/python" python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8
fi
for python in "$@"; do
    command -v -- "$python" >/dev/null 2>&1 && "$python" -c "$check" </dev/null && break
done
true
"""
"""$1 the check, $2... interpreters to look at instead of the usual ones, until one has all that is needed."""

CHECK = """
import importlib.util, json, sys
has = [name for name in ("numpy", "onnxruntime", "tensorrt") if importlib.util.find_spec(name)]
if sys.version_info >= (3, 8):
    print("edgekit: " + json.dumps({"path": sys.executable, "has": has}))
sys.exit("numpy" not in has or len(has) < 2)
"""
"""Python: what an interpreter has; exit status 0 when it has numpy and a runtime."""

LOOK = """
cd -- "$1" || exit 1
touch -c -- "./${2%%/*}"
sum=-
size=0
[ -f "./$2" ] && sum=$(sha256sum <"./$2")
[ -f "./$3" ] && size=$(wc -c <"./$3")
echo "edgekit: ${sum%% *} $((size))"
"""
"""$1 work folder, $2 name, $3 another: the sha256 of the one (`-`: not there), the bytes of the other."""

STORE = """
cd -- "$1" || exit 1
case $2 in */*) mkdir -p -- "./${2%/*}" || exit 1 ;; esac
[ "$6" -gt 0 ] || rm -f -- "./$3"
cat >>"./$3" || { rm -f -- "./$3"; exit 1; }
size=$(wc -c <"./$3")
[ "$size" -ge "$5" ] || { echo "only $size of $5 bytes arrived" >&2; exit 1; }
sum=$(sha256sum <"./$3")
[ "${sum%% *}" = "$4" ] || { rm -f -- "./$3"; echo "other bytes arrived than were sent" >&2; exit 1; }
mv -f -- "./$3" "./$2"
"""
"""$1 work folder, $2 name, $3 unfinished file, $4 sha256, $5 size, $6 bytes that are there; input: the rest.

What a broken link leaves stays, to go on from; what is wrong or does not fit goes.
"""

FETCH = """
cd -- "$1" && cat "./$2"
"""
"""$1 work folder, $2 name: its bytes."""

RUN = """
limit=$1
cd -- "$2" || exit 1
shift 2
command -v timeout >/dev/null 2>&1 && set -- timeout "$limit" "$@"
command -v setsid >/dev/null 2>&1 && set -- setsid "$@"
exec 3<&0
"$@" </dev/null 3<&- &
child=$!
{
    while read -r line; do :; done
    kill -TERM -- "-$child" || kill -TERM "$child"
    sleep 2
    kill -KILL -- "-$child" || kill -KILL "$child"
} <&3 >/dev/null 2>&1 3<&- &
watch=$!
exec 3<&-
wait "$child"
status=$?
kill "$watch" 2>/dev/null
[ "$status" -eq 255 ] && status=254
exit "$status"
"""
"""$1 seconds, $2 work folder, $3... the command, in a session of its own: ended when standard input closes."""
