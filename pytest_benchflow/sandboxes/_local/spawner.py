"""Start and end commands inside a sandbox, as its process 1. Runs there as a file of its own: standard library only.

The host holds the other end of a SOCK_SEQPACKET socket whose number is the only argument. It asks with
`run ID` (descriptors: request, stdin, stdout, stderr), `kill ID` and `listen PORT`; answers are `ready`,
`exit ID CODE`, `killed ID LEFT`, `listening` (with the socket) and `failed TEXT`. A request is, separated by NUL: the
working directory, "uid gid" or nothing, the number of arguments, the arguments, and NAME=value for each variable.

Nothing here has a privilege that the commands do not have, and the host believes none of the answers.
"""

from __future__ import annotations

# The C modules themselves: with socket, signal and ctypes every phase would start 20 ms later.
import _ctypes
import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys
import time

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_PRCTL = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]


def _prctl(option: int, value: int) -> None:
    if _ctypes.call_function(_PRCTL, (option, value, 0, 0, 0)):
        raise OSError(f"prctl {option} failed")


class Spawner:
    """Keeps one shepherd process for each command: whatever the command leaves behind becomes the shepherd's child."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control
        self.shepherds: dict[int, str] = {}

    def serve(self) -> None:
        """Answer requests until the host is gone."""
        _prctl(_PR_SET_DUMPABLE, 0)  # commands of the same user cannot attach to it
        _signal.signal(_signal.SIGCHLD, self._reap)
        self.control.send(b"ready")
        while True:
            try:
                message, ancillary, _, _ = self.control.recvmsg(256, _socket.CMSG_SPACE(16), _socket.MSG_CMSG_CLOEXEC)
            except ConnectionError:
                return
            if not message:
                return
            word, _, rest = message.decode().partition(" ")
            if word == "run":
                self._run(rest, _descriptors(ancillary))
            elif word == "kill":
                self._kill(rest)
            elif word == "listen":
                self._listen(int(rest))

    def _reap(self, _number: int, _frame: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            run = self.shepherds.pop(pid, None)
            # A shepherd reports by itself; one that was killed cannot.
            if run is not None and status:
                self.control.send(f"exit {run} -9".encode())

    def _run(self, run: str, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            os.write(descriptors[3], f"cannot start a process: {error.strerror}\n".encode())
            self.control.send(f"exit {run} 126".encode())
        else:
            if not pid:
                _shepherd(self.control, run, descriptors)
            self.shepherds[pid] = run
        for descriptor in descriptors:
            os.close(descriptor)

    def _kill(self, run: str) -> None:
        # A copy, made in one go: a shepherd that ends meanwhile is taken out by a signal handler.
        shepherd = next((pid for pid, name in list(self.shepherds.items()) if name == run), None)
        left = 0
        if shepherd is not None:
            end = time.monotonic() + 2
            # The shepherd goes last: only while it lives do orphans stay within its tree.
            while (victims := _descendants(shepherd)) and time.monotonic() < end:
                for victim in victims:
                    _end(victim)
                time.sleep(0.002)
            left = len(victims)
        self.control.send(f"killed {run} {left}".encode())

    def _listen(self, port: int) -> None:
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        try:
            listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
            rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, listener.fileno().to_bytes(4, sys.byteorder))
            self.control.sendmsg([b"listening"], [rights])
        except OSError as error:
            self.control.send(f"failed {error.strerror}".encode())
        finally:
            listener.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    data = b"".join(data for level, kind, data in ancillary if kind == _socket.SCM_RIGHTS)
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]


def _shepherd(control: _socket.socket, run: str, descriptors: list[int]) -> None:
    """Start the command, report its end, and stay until everything it started has ended; never returns."""
    try:
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        command = os.fork()
        if not command:
            _become(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                break
            if pid == command:
                control.send(f"exit {run} {os.waitstatus_to_exitcode(status)}".encode())
    except BaseException:
        os._exit(1)
    os._exit(0)


def _become(descriptors: list[int]) -> None:
    """Turn this process into the command that the request names; never returns."""
    name = b"?"
    try:
        for target in range(3):
            os.dup2(descriptors[target + 1], target)
        os.setsid()
        with os.fdopen(descriptors[0], "rb") as request:
            cwd, ids, count, *words = request.read().split(b"\0")
        argv, pairs = words[: int(count)], words[int(count) :]
        env = dict(pair.split(b"=", 1) for pair in pairs)
        for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(ignored, _signal.SIG_DFL)
        os.umask(0o022)
        if ids:
            uid, gid = map(int, ids.split())
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        name = cwd
        os.chdir(cwd)
        name = argv[0]
        _execute(argv, env)
    except OSError as error:
        os.write(2, b"%s: %s\n" % (name, os.fsencode(error.strerror or str(error))))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(126)


def _execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)  # noqa: S606 - starting what it is told to is its purpose
    failure = FileNotFoundError(2, "command not found")
    for directory in env.get(b"PATH", b"/usr/bin:/bin").split(b":"):
        try:
            os.execve(directory + b"/" + argv[0], argv, env)  # noqa: S606 - as above
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            failure = error  # type: ignore[assignment]
    raise failure


def _descendants(root: int) -> list[int]:
    """Return the living processes below `root`, by /proc: zombies are as good as dead."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries]
    for name in names:
        if name.isdigit():
            try:
                state, parent = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()[:2]
            except OSError:
                continue
            children.setdefault(int(parent), []).append((int(name), state))
    found: list[int] = []
    todo = [root]
    while todo:
        for pid, state in children.get(todo.pop(), []):
            todo.append(pid)
            if state not in (b"Z", b"X"):
                found.append(pid)
    return found


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 8192)
    finally:
        os.close(descriptor)


def _end(pid: int) -> None:
    try:
        os.kill(pid, _signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        # Root here may become any user but has no right over other users' processes: become that user for it.
        child = os.fork()
        if not child:
            try:
                lines = _read(f"/proc/{pid}/status").splitlines()
                uid = next(int(line.split()[1]) for line in lines if line.startswith(b"Uid:"))
                os.setresuid(uid, uid, uid)
                os.kill(pid, _signal.SIGKILL)
            finally:
                os._exit(0)


def _keep_descriptors() -> None:
    """Let no command inherit what process 1 was started with."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib would cost every phase its import
        if int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:  # the one that the list was read through
                continue


if __name__ == "__main__":
    _keep_descriptors()
    Spawner(_socket.socket(fileno=int(sys.argv[1]))).serve()
