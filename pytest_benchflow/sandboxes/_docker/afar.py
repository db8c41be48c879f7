"""Reach into a running container through its engine alone: files as archives, kills by a script run inside as root."""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._docker.inhabited import (
    ENDED,
    LEAST_BYTES,
    RUN_VARIABLE,
    SHARED_DIRECTORIES,
    STICKY_DIRECTORIES,
)
from pytest_benchflow.sandboxes._files import MAX_BYTES, MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.sandboxes._docker.engine import Engine

_MEMORY_BYTES = 4 << 20
_GO_DIRECTORY, _GO_LINK, _GO_OTHER = 1 << 31, 1 << 27, 0x72 << 20  # bits of a mode as the engine writes it
# Ends with 0 when no process of the run is left, otherwise when that cannot be told.
_KILL = """\
mark=$1 self=$$ turn=0
for tool in cat tr grep sleep; do command -v $tool >/dev/null || exit 2; done
while [ $turn -lt 60 ]; do
    turn=$((turn + 1)) found= all= doubt=
    for place in /proc/[0-9]*; do
        pid=${place#/proc/}
        [ "$pid" = 1 ] || [ "$pid" = $self ] && continue
        line=$(cat $place/stat 2>/dev/null) || continue
        set -- ${line##*) }
        case $1 in Z | X) continue ;; esac
        all="$all $pid:$2"
        variables=$(tr '\\000' '\\n' 2>/dev/null <$place/environ) || { [ -e $place ] && doubt=1; }
        printf '%s\\n' "$variables" | grep -qxF "$mark" && found="$found $pid "
    done 2>/dev/null
    more=1
    while [ $more = 1 ]; do
        more=0
        for pair in $all; do
            case "$found" in *" ${pair%:*} "*) continue ;; esac
            case "$found" in *" ${pair#*:} "*) found="$found ${pair%:*} " more=1 ;; esac
        done
    done
    if [ -z "$found" ]; then
        [ -z "$doubt" ] && exit 0
    else
        kill -9 $found 2>/dev/null
    fi
    sleep 0.05 2>/dev/null || sleep 1
done
exit 3
"""
# A disk that is full takes what fits into a block that a file has already.
_TRY_TO_WRITE = """\
file=/.benchflow-room-$$ left=$1
while [ $left -gt 0 ]; do
    echo 123456789012345678901234567890123456789012345678901234567890123 || { rm -f $file; exit 1; }
    left=$((left - 64))
done >$file 2>/dev/null || exit 1
rm -f $file
"""


class Copies:
    """Puts files into a container, started or not; methods block."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or directory of this machine to `target`. Raises: SandboxError for links that lead out of it."""
        if source.is_symlink():
            raise SandboxError(f"{source} is a link; give the file or directory it stands for")
        target = _absolute(target)
        directory = source.is_dir()
        with _archive() as (tar, file):
            for missing in self._missing(target if directory else posixpath.dirname(target)):
                mode = 0o755
                if missing == target:
                    mode |= stat.S_IMODE(source.stat().st_mode) & 0o777
                _add_directory(tar, missing, mode)
            try:
                if directory:
                    _add_tree(tar, source, source, target)
                else:
                    _add_file(tar, source, target)
            except OSError as error:
                raise SandboxError(f"{source} cannot be copied to {target}: {error.strerror or error}") from error
            self._put(tar, file)

    def _missing(self, path: str) -> list[str]:
        """Return the directories that have to be made for `path`, outermost first."""
        found: list[str] = []
        while path != "/" and not self._is_directory(path):
            found.append(path)
            path = posixpath.dirname(path)
        return found[::-1]

    def _put(self, tar: tarfile.TarFile, file: IO[bytes]) -> None:
        tar.close()
        file.seek(0)
        self._engine.ask("put_archive", self._name, "/", file)

    def _stat(self, path: str) -> int | None:
        """Return the mode of what is at `path` in the engine's own bits; None: nothing is there."""
        return self._engine.stat(self._name, path)

    def _is_directory(self, path: str) -> bool:
        return bool((self._stat(f"{path}/.") or 0) & _GO_DIRECTORY)


class Afar(Copies):
    """One start of a container, whose processes may be on any machine; methods block."""

    def __init__(self, engine: Engine, name: str) -> None:
        super().__init__(engine, name)
        state = engine.ask("inspect_container", name)["State"]
        if not state["Running"]:
            raise SandboxError("the container ended as it started: its image needs a /bin/sh that runs here")
        self._started = state["StartedAt"]

    def close(self) -> None:
        """Let go of nothing: the engine holds it."""

    @property
    def lives(self) -> bool:
        """Tell whether this start of the container is still running."""
        try:
            state = self._engine.ask("inspect_container", self._name)["State"]
        except FileNotFoundError:
            return False
        return bool(state["Running"]) and state["StartedAt"] == self._started

    def wait_dead(self) -> None:
        """See that it has ended, as the engine says. Raises: SandboxError."""
        if self.lives:
            raise SandboxError("the engine says that the container still runs after SIGKILL")

    def is_file(self, path: str) -> bool:
        """Tell whether a file is at `path`; one behind a link counts as none."""
        mode = self._stat(path)
        return mode is not None and not mode & (_GO_DIRECTORY | _GO_LINK | _GO_OTHER)

    def check_user(self, user: str | int) -> None:
        """Leave it to the engine, which names a user that the image has not when a command is started."""

    def has_room(self) -> bool:
        """Tell whether a small file can still be written: the engine does not say how full its disk is."""
        return self._run(["/bin/sh", "-c", _TRY_TO_WRITE, "sh", str(LEAST_BYTES)])[0] == 0

    def lay_out(self, workdir: str) -> None:
        """Make the directories that every task may rely on; those of the image stay as they are."""
        with _archive() as (tar, file):
            for path in (*SHARED_DIRECTORIES, *STICKY_DIRECTORIES, workdir):
                missing = self._missing(path)
                for each in missing[:-1]:
                    _add_directory(tar, each, 0o755)
                if path in SHARED_DIRECTORIES:
                    _add_directory(tar, path, 0o777)
                elif missing:
                    _add_directory(tar, path, 0o1777 if path in STICKY_DIRECTORIES else 0o755)
            self._put(tar, file)

    def remove(self, path: str) -> None:
        """Remove a file or directory; nothing happens when it is not there. Raises: SandboxError.

        The engine empties it; a program of the image's then removes the empty file that this leaves.
        """
        path = _absolute(path)
        if path == "/":
            raise SandboxError("/ is the whole sandbox; only what is in it can be removed")
        if self._stat(path) is None:
            return
        with _archive() as (tar, file):
            tar.addfile(tarfile.TarInfo(path.lstrip("/")))
            self._put(tar, file)
        code, said = self._run(["/bin/sh", "-c", 'rm -f -- "$1"', "sh", path])
        if code != 0 or self._stat(path) is not None:
            raise SandboxError(f"{path} cannot be removed: {said.strip() or 'it is still there'}; it is empty now")

    def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or directory to `target` of this machine; links and special files are left out.

        Raises: FileNotFoundError when it is not there or is a link itself, SandboxError beyond 4 GiB or 200 levels.
        """
        source = _absolute(source)
        mode = self._stat(source)
        if mode is None:
            raise FileNotFoundError(f"{source} is not there")
        if mode & (_GO_LINK | _GO_OTHER):
            raise FileNotFoundError(f"{source} is not a file or a directory; links are not followed")
        target.parent.mkdir(parents=True, exist_ok=True)
        chunks, _stat = self._engine.ask("get_archive", self._name, source)
        try:
            arriving: Any = _Chunks(iter(chunks))
            with tarfile.open(fileobj=arriving, mode="r|") as tar:
                _Extraction(source, target).run(tar)
        except tarfile.TarError as error:
            raise SandboxError(f"{source} did not arrive whole: {error}") from error
        except self._engine.errors as error:
            raise SandboxError(f"{source} did not arrive whole: {error}") from error

    def kill_run(self, run: str) -> bool:
        """Kill every process of one run: those that carry its mark and what descends from them; True: none is left."""
        return self._run(["/bin/sh", "-c", _KILL, "sh", f"{RUN_VARIABLE}={run}"])[0] == 0

    def _run(self, command: list[str]) -> tuple[int | None, str]:
        """Run a command as root and return its exit code and output. Raises: SandboxError."""
        try:
            made = self._engine.ask("exec_create", self._name, command, user="0", workdir="/")
            said = self._engine.ask("exec_start", made["Id"])
            return self._engine.ask("exec_inspect", made["Id"])["ExitCode"], said.decode(errors="backslashreplace")
        except FileNotFoundError as error:
            raise SandboxError(ENDED) from error


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise SandboxError(f"{path!r} is not an absolute path; paths inside a sandbox begin with /")
    if path.rstrip("/").endswith("/.."):
        raise SandboxError(f"{path} ends with ..; name what is meant itself")
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


@contextlib.contextmanager
def _archive() -> Iterator[tuple[tarfile.TarFile, IO[bytes]]]:
    """Yield a tar and its file, which stays in memory while it is small."""
    with (
        tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield tar, file


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name.lstrip("/"))
    made.mode = mode
    return made


def _add_directory(tar: tarfile.TarFile, name: str, mode: int) -> None:
    made = _entry(name, mode)
    made.type = tarfile.DIRTYPE
    tar.addfile(made)


def _add_tree(tar: tarfile.TarFile, top: Path, source: Path, target: str) -> None:
    for path in sorted(source.iterdir()):
        name = f"{target}/{path.name}"
        if path.is_symlink():
            link = path.readlink()
            # Normalised by text: what a link names must not depend on other links.
            landing = Path(os.path.normpath(path.parent / link))
            if link.is_absolute() or not landing.is_relative_to(top):
                raise SandboxError(f"{path} is a link to {link}, which leads out of {top}; it is not copied")
            made = _entry(name, 0o777)
            made.type, made.linkname = tarfile.SYMTYPE, str(link)
            tar.addfile(made)
        elif path.is_dir():
            _add_directory(tar, name, stat.S_IMODE(path.stat().st_mode) & 0o777 | 0o700)
            _add_tree(tar, top, path, name)
        else:
            _add_file(tar, path, name)


def _add_file(tar: tarfile.TarFile, source: Path, name: str) -> None:
    # Not blocking: opening a pipe nobody writes to would wait for ever.
    reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(reading, "rb") as original:
        found = os.fstat(reading)
        if not stat.S_ISREG(found.st_mode):
            raise SandboxError(f"{source} is neither a file nor a directory; only those are copied")
        made = _entry(name, stat.S_IMODE(found.st_mode) & 0o777)
        made.size, made.mtime = found.st_size, int(found.st_mtime)
        tar.addfile(made, original)


class _Chunks:
    """The engine's answer as a file that is read forwards only."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while len(self._rest) < size and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class _Extraction:
    """Writes what an engine tells of a container's files below `target`, and never elsewhere."""

    def __init__(self, source: str, target: Path) -> None:
        self._source = source
        self._target = target
        self._left = MAX_BYTES
        self._made: dict[PurePosixPath, Path] = {}

    def run(self, tar: tarfile.TarFile) -> None:
        for entry in tar:
            parts = PurePosixPath(entry.name).parts[1:]
            if ".." in parts:
                raise SandboxError(f"{self._source} holds {entry.name!r}, which leads out of it")
            if len(parts) > MAX_DEPTH:
                raise SandboxError(f"{self._source} is more than {MAX_DEPTH} directories deep; it is not copied out")
            self._take(tar, entry, self._target.joinpath(*parts))

    def _take(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
        name = PurePosixPath(entry.name)
        if entry.isdir():
            path.mkdir(exist_ok=True)
        elif entry.islnk() and PurePosixPath(entry.linkname) in self._made:
            self._spend((original := self._made[PurePosixPath(entry.linkname)]).stat().st_size)
            path.unlink(missing_ok=True)
            path.write_bytes(original.read_bytes())
        elif entry.isreg():
            self._spend(entry.size)
            path.unlink(missing_ok=True)
            reading = tar.extractfile(entry)
            assert reading is not None
            with path.open("xb") as copy:
                while chunk := reading.read(1 << 20):
                    copy.write(chunk)
            self._made[name] = path

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise SandboxError(f"{self._source} holds more than {MAX_BYTES >> 30} GiB; it is not copied out")
