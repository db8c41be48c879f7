"""What is decided about a sandbox at Daytona before Daytona is asked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.sandboxes._daytona.api import Api
from pytest_benchflow.sandboxes._daytona.files import check_path
from pytest_benchflow.sandboxes._daytona.image import DEFAULT_IMAGE, intervals, lay_out_copies, plan, resources
from pytest_benchflow.sandboxes._daytona.scripts import BRIDGE, program
from pytest_benchflow.sandboxes._daytona.ssh import Address, _check_host, parse_command
from pytest_benchflow.sandboxes._daytona.users import find
from pytest_benchflow.sandboxes.daytona import TRANSPORT, backend, choose_transport
from pytest_benchflow.tasks.task import Environment
from tests.contracts.sandboxrig import make_task

if TYPE_CHECKING:
    from pathlib import Path

PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:100::/home/app:/bin/sh\nodd line\n:\nwheel:x:10:\n"


@pytest.mark.parametrize(
    ("asked", "agent", "taken"),
    [
        (None, "baseline", "pty"),
        ("pty", "openhands@1.28.1", "pty"),
        ("ssh", "baseline", "ssh"),
        (None, "gemini", "ssh"),
        ("pty", "gemini@0.61", "ssh"),
    ],
    ids=["by-default", "asked-pty", "asked-ssh", "gemini", "gemini-against-the-asking"],
)
def test_an_agent_travels_as_asked_and_gemini_by_ssh(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, agent: str, taken: str
) -> None:
    monkeypatch.delenv(TRANSPORT, raising=False)
    if asked:
        monkeypatch.setenv(TRANSPORT, asked)
    assert choose_transport(agent) == taken


@pytest.mark.parametrize("agent", ["baseline", "gemini"])
def test_another_transport_is_a_usage_error_before_anything_starts(monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
    monkeypatch.setenv(TRANSPORT, "PTY")
    with pytest.raises(UsageError, match="'PTY'; it takes pty or ssh"):
        choose_transport(agent)
    with pytest.raises(UsageError, match=TRANSPORT):
        backend.check()


def test_no_password_is_taken_in_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("daytona")
    monkeypatch.setenv("DAYTONA_API_KEY", "k")
    monkeypatch.setenv("DAYTONA_API_URL", "https://me:hunter2@daytona.invalid/api")
    said = str(backend.available())
    assert said.startswith("DAYTONA_API_URL has a user or a password in it")
    assert "hunter2" not in said
    monkeypatch.setenv("DAYTONA_API_URL", "https://daytona.invalid/api")
    assert backend.available() is None


def test_sizes_are_rounded_up_and_a_disk_is_cut_with_a_warning() -> None:
    limits: dict[str, dict[str, object]] = {}
    assert resources(Environment(cpus=1.5, memory_mb=2049, storage_mb=20_000), limits) == {
        "cpu": 2,
        "memory": 3,
        "disk": 10,
    }
    assert "20000 MiB" in str(limits["storage_mb"]["warning"])
    assert "warning" not in limits["memory_mb"]
    limits.clear()
    assert resources(Environment(storage_mb=10_240), limits) == {"disk": 10}
    assert "warning" not in limits["storage_mb"]
    assert resources(Environment(), limits) == {}


@pytest.mark.parametrize("lifetime", [1.0, 3600.0, 115_200.0, None], ids=["short", "hour", "longest", "unknown"])
def test_nothing_ends_a_sandbox_before_its_rollout_and_something_always_does(lifetime: float | None) -> None:
    made = intervals(lifetime)
    needed = (lifetime or 0) / 60
    assert all(minutes >= needed + 30 for minutes in made.values())
    assert made["ttl_minutes"] > max(made["auto_stop_interval"], made["auto_delete_interval"])
    assert made["ttl_minutes"] <= (lifetime or 4 * 3600) / 60 + 61


def test_files_that_no_step_needs_stay_out_of_the_image(tmp_path: Path) -> None:
    text = (
        "FROM debian:12\nRUN apt-get update\nWORKDIR /srv\nCOPY data/ in/\nCOPY one.txt two.txt /etc/app/\nUSER app\n"
    )
    task = make_task(tmp_path / "task", dockerfile=text)
    context = tmp_path / "task/environment"
    (context / "data").mkdir()
    for name in ("data/deep", "data/left", "one.txt", "two.txt"):
        (context / name).write_text(name)
    (context / ".dockerignore").write_text("data/left\n")
    made = plan(task)
    assert made.text == "FROM debian:12\nRUN apt-get update\nWORKDIR /srv\nUSER app\n"
    assert (made.workdir, made.user) == ("/srv", "app")
    root = tmp_path / "root"
    root.mkdir()
    lay_out_copies(task, made.copies, root)
    found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert found == {"srv/in/deep", "etc/app/one.txt", "etc/app/two.txt"}


@pytest.mark.parametrize(
    "text",
    [
        "FROM debian\nCOPY a /a\nRUN cat /a\n",
        "FROM debian AS first\nFROM debian\nCOPY --from=first /a /a\n",
        "FROM debian\nCOPY --chown=app a /a\n",
        "FROM debian\nADD https://example.org/a /a\n",
        "FROM debian\nADD a.tar.gz /a\n",
        "# syntax=docker/dockerfile:1\nFROM debian\nCOPY a /a\n",
        "FROM debian\nRUN <<EOF\ntrue\nEOF\nCOPY a /a\n",
    ],
    ids=["a-step-reads-it", "two-stages", "an-owner", "from-the-web", "an-archive", "another-syntax", "a-heredoc"],
)
def test_a_dockerfile_that_needs_its_context_is_built_with_it(tmp_path: Path, text: str) -> None:
    task = make_task(tmp_path, dockerfile=text)
    (tmp_path / "environment/a").write_text("one")
    made = plan(task)
    assert (made.text, made.copies) == (None, ())
    before = backend.fingerprint(task)
    (tmp_path / "environment/a").write_text("two")
    assert backend.fingerprint(task) != before


def test_a_task_without_an_image_has_the_stated_one(tmp_path: Path) -> None:
    made = plan(make_task(tmp_path))
    assert (made.text, made.workdir) == (f"FROM {DEFAULT_IMAGE}\n", "/app")


def test_the_ssh_command_says_where_to_go_and_nothing_else_is_believed() -> None:
    assert parse_command("ssh -p 2222 tok@gate.example.org", "tok") == Address("gate.example.org", 2222, "tok")
    assert parse_command("ssh tok@gate.example.org", "tok").port == 22
    for command in ("ssh other@gate", "scp tok@gate", "ssh tok@", "ssh -p x tok@gate", ""):
        with pytest.raises(SandboxError, match="not understood") as caught:
            parse_command(command, "tok")
        assert "tok@" not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "cause", "says"),
    [
        ("Failed to execute command: ", TimeoutError(), "looking: Failed to execute command: no answer in time"),
        ("Failed to execute command: ", EOFError(), "looking: Failed to execute command: DaytonaConnectionError"),
        ("Failed to get: Bad Gateway", EOFError(), "looking: Failed to get: Bad Gateway"),
        ("", TimeoutError(), "looking: no answer in time"),
    ],
)
def test_an_error_without_words_gets_some(prefix: str, cause: Exception, says: str) -> None:
    errors = pytest.importorskip("daytona.common.errors")
    error = errors.DaytonaConnectionError(prefix)
    error.__cause__ = cause
    assert str(Api("https://daytona.invalid").told("looking", error)) == says


def test_gateways_met_at_once_are_all_remembered_and_each_keeps_its_key(tmp_path: Path) -> None:
    paramiko = pytest.importorskip("paramiko")
    known, keys = tmp_path / "cache" / "hosts", [paramiko.ECDSAKey.generate() for _ in range(8)]
    met = threading.Barrier(len(keys))

    def meet(number: int, host: str) -> None:
        met.wait()
        _check_host(paramiko, keys[number], Address(host, 2222, "tok"), known)

    with ThreadPoolExecutor(len(keys)) as pool:
        list(pool.map(meet, range(8), [f"gate{number}.example.org" for number in range(8)]))
        assert len(known.read_text().splitlines()) == 8
        # Of two that show different keys for one name one is believed, and the other is not.
        faults = [pool.submit(meet, number, "one.example.org").exception for number in range(8)]
        assert sum(fault() is None for fault in faults) == 1
    for number, key in enumerate(keys):
        _check_host(paramiko, key, Address(f"gate{number}.example.org", 2222, "tok"), known)
    before = known.read_bytes()
    for other in (keys[1], paramiko.RSAKey.generate(1024)):
        with pytest.raises(SandboxError, match="shows another key than before"):
            _check_host(paramiko, other, Address("gate0.example.org", 2222, "tok"), known)
    assert known.read_bytes() == before


def test_users_are_those_of_the_sandbox() -> None:
    assert find(PASSWD, "app").ids == "1000 100"
    assert find(PASSWD, 1000).home == "/home/app"
    assert find(PASSWD, "app:wheel").ids == "1000 10"
    assert find(PASSWD, "4711").ids == "4711 4711"
    for user in ("nobody", "app:staff"):
        with pytest.raises(SandboxError, match="is not in the sandbox's /etc/"):
            find(PASSWD, user)


@pytest.mark.parametrize("path", ["app", "/app/..", "/a\0b"], ids=["relative", "upwards", "nul"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(SandboxError, match=r"absolute|\.\."):
        check_path(path)


def test_a_window_that_is_opened_before_its_command_has_begun_stays_open(tmp_path: Path) -> None:
    # It says what it is told, and ends with its input.
    script = program(["cat"], env={}, cwd="/", ids="", mark="a-mark", stdin=None, directory=str(tmp_path))
    window = subprocess.Popen(
        ["sh", "-c", BRIDGE, "sh", str(tmp_path), "1", "word"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )
    assert window.stdin
    assert window.stdout
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            window.wait(0.5)
        command = subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            window.stdin.write(b"here\n")
            read = b""
            while b"here" not in read and (more := window.stdout.read(100)):
                read += more
            assert read == b"\nwindow: word\nhere\n"
            os.kill(int((tmp_path / "feeder").read_text()), signal.SIGKILL)
            assert command.wait(60) == 0
            assert window.wait(60) is not None
            assert (tmp_path / "code").read_text() == "0\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            command.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(window.pid, signal.SIGKILL)
        window.communicate()
