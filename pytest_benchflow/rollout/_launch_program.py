"""Run launch commands inside a sandbox over a table of environments, and say what each did.

Standard input is a JSON object: `scripts` by side, `rows` (each with `name`, `env` by side, `exit`, `bare`), `workdir`,
`limit` in seconds. Standard output is one too: `outcomes` by side and row, and `made`, the paths of stubs. What
is not installed is found by tracing a run, and stubs stand in for it; each run begins with the same files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# A file's mode and its content: bytes, a link's target, None of what has none.
File = tuple[int, "bytes | str | None"]

PLACE = Path("/opt/benchflow/parity")
BIN = PLACE / "bin"
WRAPPED = ("sh", "bash", "dash", "python", "python3", "node", "mktemp")
# What a client says first. A launch command that reads it takes it from its agent.
_REQUEST = b'{"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": 1}}\n'
# A command that writes without end must not fill the host's disk; one that loops, not the driver's time.
_FILE_LIMIT = 64 << 20
_TRACE_LIMIT = 4 << 20
_LATE = 2
_LATE_SEC = 1.0
_TRACE_FD = 61
_TRACE = "PS4='\x1e$PWD\x1f'\nset -x\n"
_ROUNDS = 16
_TEXT_LIMIT = 1 << 16
_CALLS = 100
# The stub keeps one byte more.
_STDIN_LIMIT = 1 << 20
# What a shell sets for itself.
_NOISE = ("PWD", "OLDPWD", "SHLVL", "_")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
# Commands that run another, with their options that take a value.
_PREFIXES = {"exec": "-a", "command": "", "builtin": "", "env": "-u -S -C", "nohup": "", "setsid": "", "nice": "-n"}
_PREFIXES |= {"timeout": "-k -s", "stdbuf": "-i -o -e"}


class Files:
    """The files of this sandbox outside of mounts: what changed since `take`, and the way back."""

    def __init__(self) -> None:
        mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
        points = {line.split()[4].encode().decode("unicode_escape") for line in mounts}
        self._skipped = (points - {"/"}) | {str(PLACE)}
        self._base: dict[Path, File] = {}

    def take(self) -> None:
        """Make what is there now what every run begins with."""
        self._base = dict(self._walk("/"))

    def changes(self) -> dict[str, Any]:
        """Return what is new or changed by path, None for what is gone."""
        now = dict(self._walk("/"))
        changed = {str(path): told(*now[path]) for path in now if now[path] != self._base.get(path)}
        return changed | {str(path): None for path in self._base.keys() - now.keys()}

    def restore(self) -> None:
        """Put everything back."""
        now = dict(self._walk("/"))
        for path in sorted(now, reverse=True):
            mode, _ = self._base.get(path, (0, None))
            if stat.S_IFMT(now[path][0]) != stat.S_IFMT(mode) or (stat.S_ISLNK(mode) and now[path] != self._base[path]):
                path.rmdir() if stat.S_ISDIR(now[path][0]) else path.unlink()
                del now[path]
        for path, (mode, content) in self._base.items():
            if now.get(path) == (mode, content):
                continue
            if isinstance(content, str):
                path.symlink_to(content)
                continue
            if stat.S_ISDIR(mode):
                path.mkdir(exist_ok=True)
            elif content is not None:
                path.write_bytes(content)
            path.chmod(stat.S_IMODE(mode))

    def _walk(self, directory: str) -> Iterator[tuple[Path, File]]:
        """Yield directories before what is in them."""
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.path in self._skipped:
                    continue
                path, mode = Path(entry.path), entry.stat(follow_symlinks=False).st_mode
                content: bytes | str | None = None
                if stat.S_ISLNK(mode):
                    content = str(path.readlink())
                elif stat.S_ISREG(mode):
                    content = path.read_bytes()
                yield path, (mode, content)
                if stat.S_ISDIR(mode):
                    yield from self._walk(entry.path)


def told(mode: int, content: bytes | str | None) -> dict[str, Any]:
    """Return what is compared of a file."""
    said: dict[str, Any] = {"kind": stat.filemode(mode)[0], "mode": f"{stat.S_IMODE(mode):04o}"}
    if isinstance(content, str):
        return {**said, "link": content}
    if content is not None:
        try:
            said["text"] = content.decode() if len(content) <= _TEXT_LIMIT else None
        except UnicodeDecodeError:
            said["text"] = None
        if said["text"] is None:
            said["sha256"] = hashlib.sha256(content).hexdigest()
    return said


class Driver:
    """Runs scripts; stubs, once made, stay for all that follow."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._path = os.environ["PATH"]
        self._bash = shutil.which("bash", path=self._path)
        self._kinds: dict[str, str] = {}
        self.made: list[str] = []
        self.files = Files()
        self._late: dict[str, int] = {}
        (PLACE / "request").write_bytes(_REQUEST)
        self._stub = Path(__file__).with_name("stub.sh").read_text("utf-8")
        BIN.mkdir()
        for name in WRAPPED:
            self._write_stub(BIN / name)
        Path(job["workdir"]).mkdir(parents=True, exist_ok=True)
        self.files.take()

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Return what each side did in each row. Rows without stubs come first, then those that need them."""
        rows, sides = self._job["rows"], list(self._job["scripts"])
        done: dict[str, dict[str, Any]] = {side: {} for side in sides}
        pairs = [(row, side) for row in rows for side in sides]
        for row, side in (pair for pair in pairs if pair[0]["bare"]):
            done[side][row["name"]] = self._measure(side, row)
        pairs = [pair for pair in pairs if not pair[0]["bare"]]
        faults = [self._find_programs(side, row) for row, side in pairs]
        for (row, side), fault in zip(pairs, faults, strict=True):
            outcome = done[side][row["name"]] = self._measure(side, row)
            outcome["undecided"] += [fault] if fault else []
        return {side: {row["name"]: done[side][row["name"]] for row in rows} for side in sides}

    def _find_programs(self, side: str, row: dict[str, Any]) -> str | None:
        """Make stubs for what a script calls and does not find; return why that cannot be done."""
        if self._bash is None:
            return "bash, which finds the programs it calls, is not in this sandbox"
        for _ in range(_ROUNDS):
            trace = PLACE / "trace"
            script = _TRACE + self._job["scripts"][side]
            with trace.open("wb") as file:
                os.dup2(file.fileno(), _TRACE_FD)
                env = self._environment(side, row) | {"BASH_XTRACEFD": str(_TRACE_FD)}
                self._run([self._bash, "--posix", "-c", script, "sh"], env, row, side, tracing=True)
                os.close(_TRACE_FD)
            missing = self._missing(head(trace, _TRACE_LIMIT))
            self.files.restore()
            if not missing:
                return None
            for path, is_directory in missing.items():
                self.made.append(str(path))
                try:
                    path.mkdir(parents=True) if is_directory else self._write_stub(path)
                except OSError as error:
                    return f"no stub can be made for {path}: {error.strerror}"
            self.files.take()
        return f"it calls more and more programs, each time others: {', '.join(map(str, missing))}"

    def _missing(self, trace: str) -> dict[Path, bool]:
        """Return the programs, and the directories (True), that a trace shows and that are not there."""
        found: dict[Path, bool] = {}
        asked: list[Path] = []
        for text in re.split("\x1e+", trace)[1:]:
            where, _, command = text.partition("\x1f")
            try:
                words = shlex.split(command)
            except ValueError:
                words = command.split()
            if words[:2] == ["command", "-v"]:
                asked += [BIN / word for word in words[2:] if self._kind(word) == ""]
            else:
                found |= self._missing_of(words, where)
        # What is only asked for may be meant to be absent, unless nothing is run for want of it.
        return found or ({} if read_calls() else {path: False for path in asked if not path.exists()})

    def _missing_of(self, words: list[str], where: str) -> dict[Path, bool]:
        """Return what one command, in the directory `where`, needs and does not find."""
        if words[:1] in (["["], ["test"]) and "-x" in words[:-1]:
            tested = Path(words[words.index("-x") + 1])
            return {} if tested.exists() or not tested.is_absolute() else {tested: False}
        executed, words = words[:1] == ["exec"], program_words(words)
        if words[:1] == ["cd"] and len(words) > 1:
            place = Path(words[1])
            return {} if place.exists() or not place.is_absolute() else {place: True}
        if not words or words[0] in WRAPPED:
            return {}
        if "/" in words[0]:
            path = Path(os.path.normpath(Path(where, words[0])))
            return {} if path.exists() else {path: False}
        kind = self._kind(words[0])
        missing = (kind == "" or (kind == "file" and executed)) and not (BIN / words[0]).exists()
        return {BIN / words[0]: False} if missing else {}

    def _kind(self, word: str) -> str:
        """Return what a bare word is to a shell: file, builtin, keyword or nothing."""
        if word not in self._kinds:
            asked = [self._bash or "bash", "--posix", "-c", 'type -t -- "$1"', "sh", word]
            done = subprocess.run(asked, capture_output=True, text=True, check=False, env={"PATH": self._path})
            self._kinds[word] = done.stdout.strip() if re.fullmatch(r"[\w.+-]+|\[\[?|:|\.|\(\(|!|\{", word) else "odd"
        return self._kinds[word]

    def _write_stub(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._stub, "utf-8")
        path.chmod(0o755)

    def _environment(self, side: str, row: dict[str, Any]) -> dict[str, str]:
        env = {**os.environ, **row["env"][side], "PATH": f"{BIN}:{self._path}"}
        Path(env["HOME"]).mkdir(parents=True, exist_ok=True)
        return env

    def _measure(self, side: str, row: dict[str, Any]) -> dict[str, Any]:
        """Run a script as a rollout does, and tell what it did."""
        shell = shutil.which("sh", path=self._path) or "/bin/sh"
        code = self._run([shell, "-c", self._job["scripts"][side]], self._environment(side, row), row, side)
        calls = read_calls()
        outcome: dict[str, Any] = {
            "exit": code,
            "calls": calls[:_CALLS],
            "files": self.files.changes(),
            "stdout": head(PLACE / "stdout"),
            "stderr": (PLACE / "stderr").read_bytes()[-_TEXT_LIMIT:].decode("utf-8", "backslashreplace"),
            "undecided": why_undecided(code, calls, bare=row["bare"]),
        }
        if (PLACE / "stdout").stat().st_size > _TEXT_LIMIT:
            outcome["undecided"].append(f"it prints over {_TEXT_LIMIT} bytes, and only those are compared")
        self.files.restore()
        return outcome

    def _run(
        self, argv: list[str], env: dict[str, str], row: dict[str, Any], side: str, *, tracing: bool = False
    ) -> int | None:
        """Run a command and everything it starts to its end; None: its time was up."""
        (PLACE / "temporary").unlink(missing_ok=True)
        shutil.rmtree(PLACE / "calls", ignore_errors=True)
        (PLACE / "calls").mkdir()
        run = {"path": self._path, "python": sys.executable, "bash": self._bash or "", "exit": str(row["exit"])}
        run["trace"] = _TRACE if tracing else ""
        (PLACE / "run").write_text(
            "".join(f"parity_{key}={shlex.quote(value)}\n" for key, value in run.items()), "utf-8"
        )
        with (
            (PLACE / "request").open("rb") as request,
            (PLACE / "stdout").open("wb") as out,
            (PLACE / "stderr").open("wb") as err,
        ):
            process = subprocess.Popen(
                argv,
                env=env,
                cwd=self._job["workdir"],
                stdin=request,
                stdout=out,
                stderr=err,
                start_new_session=True,
                umask=0o022,
                pass_fds=(_TRACE_FD,) if tracing else (),
            )
            try:
                # A side that hangs may not take this long in each row.
                late = self._late.get(side, 0)
                if ended(process, self._job["limit"] if late < _LATE else min(_LATE_SEC, self._job["limit"])):
                    return process.returncode
                self._late[side] = late + 1
                return None
            finally:
                # What it left in the background would write into the next run.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def ended(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for the end of a process; False: it took longer. Popen's own way to wait looks only now and then."""
    descriptor = os.pidfd_open(process.pid)
    try:
        select.select([descriptor], [], [], limit)
    finally:
        os.close(descriptor)
    return process.poll() is not None


def head(path: Path, limit: int = _TEXT_LIMIT) -> str:
    """Return the beginning of a file's text."""
    with path.open("rb") as file:
        return file.read(limit).decode("utf-8", "backslashreplace")


def read_calls() -> list[dict[str, Any]]:
    """Return the calls that stubs recorded, in order."""
    calls = []
    for place in sorted((PLACE / "calls").iterdir(), key=lambda each: int(each.name)):
        read = {each.name: each.read_bytes().decode("utf-8", "backslashreplace") for each in place.iterdir()}
        variables = (each.partition("=") for each in read["environ"].split("\0") if each)
        calls.append(
            {
                "argv": read["cmdline"].split("\0")[1:-1],
                "cwd": read["cwd"].removesuffix("\n"),
                "env": {name: value for name, _, value in variables if name not in _NOISE},
                "stdin": read["stdin"],
                "captured": "captured" in read,
                "cut": (place / "stdin").stat().st_size > _STDIN_LIMIT,
                "missing": read.get("missing"),
            }
        )
    return calls


def program_words(words: list[str]) -> list[str]:
    """Return a command without assignments and without commands that only run another."""
    while words:
        if _ASSIGNMENT.match(words[0]):
            words = words[1:]
        elif words[0] in _PREFIXES and len(words) > 1:
            prefix, words = words[0], words[1:]
            while words and words[0].startswith("-"):
                words = words[2 if words[0] in _PREFIXES[prefix].split() else 1 :]
            words = words[1:] if prefix == "timeout" else words
        else:
            break
    return words


def why_undecided(code: int | None, calls: list[dict[str, Any]], *, bare: bool) -> list[str]:
    """Say what keeps a run from telling what a real one would do."""
    if code is None:
        return ["it did not end in time"]
    reasons = [call["missing"] for call in calls if call["missing"]]
    reasons += [
        f"it reads what {call['argv'][0]} prints, which a stub cannot know" for call in calls if call["captured"]
    ]
    reasons += [
        f"it hands {Path(call['argv'][0]).name} over {_STDIN_LIMIT} bytes, not all compared"
        for call in calls
        if call["cut"]
    ]
    if code in (126, 127) and not bare:
        reasons.append(f"a program was not found (exit code {code})")
    if code < 0:
        reasons.append(f"it was killed by signal {-code}")
    if len(calls) > _CALLS:
        reasons.append(f"it calls programs {len(calls)} times")
    return list(dict.fromkeys(reasons))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_LIMIT, _FILE_LIMIT))
    driver = Driver(json.load(sys.stdin))
    json.dump({"outcomes": driver.outcomes(), "made": driver.made}, sys.stdout)
