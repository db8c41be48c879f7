"""What every sandbox must do, run over every backend that works on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from pytest_benchflow import registry
from pytest_benchflow.contracts import Mount
from pytest_benchflow.errors import SandboxError
from tests.contracts.sandboxrig import EchoEndpoint, Rig, make_task, processes_of
from tests.dockerhost import IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Backend, Sandbox

CONNECT = """\
import socket
with socket.create_connection(("127.0.0.1", {port}), 5) as connection:
    connection.sendall(b"hello\\n")
    print(connection.makefile().readline().strip())
"""


# An engine elsewhere is reached by other means than one on this machine.
KINDS = (*registry.shipped("sandboxes"), "docker-elsewhere", "ssh-plain")
ENGINES = {"docker": "docker_engine", "docker-elsewhere": "remote_engine"}
# A machine that cannot isolate is the sandbox itself.
SSH = {"ssh": "ssh_backend", "ssh-plain": "plain_backend"}


# What a sandbox must do that answers commands and runs none; what it answers is shown with the sandbox itself.
WITHOUT_PROGRAMS = {
    "test_exec_without_stdin_reads_nothing",
    "test_a_command_that_does_not_read_its_stdin_is_no_error",
    "test_writing_to_a_process_that_is_gone_is_a_broken_pipe",
    "test_what_is_no_path_in_the_sandbox_is_not_removed",
    "test_a_link_out_of_an_upload_is_refused",
    "test_a_special_file_is_not_uploaded",
    "test_a_relative_target_is_refused",
    "test_a_phase_without_network_has_no_endpoint",
    "test_cancelled_anywhere_it_leaves_nothing",
    "test_descriptors_do_not_add_up",
}


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    image = None
    if request.param in ENGINES:
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue(ENGINES[request.param]))
        image = IMAGE
    if request.param == "daytona":
        for name, value in request.getfixturevalue("daytona").environ.items():
            monkeypatch.setenv(name, value)
        image = "debian:12"
    backend = cast("Backend", registry.load("sandboxes", request.param.partition("-")[0], "backend"))
    if request.param in SSH:
        backend = request.getfixturevalue(SSH[request.param])
    if reason := backend.available():
        pytest.skip(reason)
    if not backend.capabilities.programs and request.node.originalname not in WITHOUT_PROGRAMS:
        pytest.skip(f"the {backend.name} sandbox runs no program")
    with Rig(backend, tmp_path, image) as made:
        yield made


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    made = rig.create()
    rig.run(made.enter("agent", "proxy"))
    return made


def test_exec_returns_code_output_and_errors(rig: Rig, sandbox: Sandbox) -> None:
    result = rig.sh(sandbox, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, "out\n", "err\n", False)


def test_exec_feeds_stdin_larger_than_a_pipe(rig: Rig, sandbox: Sandbox) -> None:
    result = rig.run(sandbox.exec(["wc", "-c"], stdin=b"x" * 3_000_000))
    assert result.stdout.strip() == "3000000"


def test_exec_without_stdin_reads_nothing(rig: Rig, sandbox: Sandbox) -> None:
    assert rig.run(sandbox.exec(["cat"], timeout=10)).exit_code == 0


def test_a_command_that_does_not_read_its_stdin_is_no_error(rig: Rig, sandbox: Sandbox) -> None:
    assert rig.run(sandbox.exec(["true"], stdin=b"x" * 3_000_000)).exit_code == 0


def test_undecodable_output_is_shown_escaped(rig: Rig, sandbox: Sandbox) -> None:
    assert rig.sh(sandbox, r"printf 'a\377b'").stdout == r"a\xffb"


def test_large_output_keeps_head_and_tail_and_says_what_was_cut(rig: Rig, sandbox: Sandbox) -> None:
    result = rig.sh(sandbox, "echo first; head -c 40000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert result.stdout.startswith("first\n")
    assert result.stdout.endswith("x\nlast\n")
    assert "bytes left out here" in result.stdout
    assert len(result.stdout) < 18_000_000


def test_a_missing_command_is_127_with_its_name(rig: Rig, sandbox: Sandbox) -> None:
    result = rig.run(sandbox.exec(["no-such-command"]))
    assert result.exit_code == 127
    assert "no-such-command" in result.stderr


def test_a_missing_directory_is_named(rig: Rig, sandbox: Sandbox) -> None:
    result = rig.run(sandbox.exec(["true"], cwd="/no/such"))
    assert result.exit_code not in (0, None)
    assert "/no/such" in result.stderr


def test_arguments_arrive_unchanged(rig: Rig, sandbox: Sandbox) -> None:
    words = ["", "two words", "new\nline", "quote'\"", "ü", "$HOME", "*"]
    result = rig.run(sandbox.exec(["sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "sh", *words]))
    assert result.stdout.split("\0")[:-1] == words


def test_the_environment_is_what_was_given_and_nothing_of_the_host(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_OF_THE_HOST", "secret")
    sandbox = rig.create(env={"FROM_SPEC": "spec", "BOTH": "spec"})
    result = rig.run(sandbox.exec(["env"], env={"BOTH": "exec"}))
    env = dict(line.split("=", 1) for line in result.stdout.splitlines())
    assert env["FROM_SPEC"] == "spec"
    assert env["BOTH"] == "exec"
    assert env["HOME"] == "/root"
    assert "CANARY_OF_THE_HOST" not in env


def test_the_working_directory_is_the_tasks(rig: Rig, tmp_path: Path) -> None:
    sandbox = rig.create(make_task(tmp_path / "task", workdir="/work space/here"))
    assert sandbox.workdir == "/work space/here"
    assert rig.run(sandbox.exec(["pwd"])).stdout == "/work space/here\n"


def test_standard_directories_can_be_written(rig: Rig, sandbox: Sandbox) -> None:
    places = ["/logs/agent", "/logs/verifier", "/logs/artifacts", "/app", "/tmp", "/root", "/var/tmp"]
    refused = [path for path in places if rig.sh(sandbox, f"touch {path}/file").exit_code != 0]
    assert refused == []


def test_a_timeout_kills_the_whole_tree(rig: Rig, sandbox: Sandbox) -> None:
    script = "setsid sh -c 'sleep 7777' & (sleep 7777 &) ; sleep 7777"
    started = time.monotonic()
    result = rig.sh(sandbox, script, timeout=0.5)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert time.monotonic() - started < 10
    assert rig.sh(sandbox, "ps -e -o args | grep -c '[s]leep 7777'").stdout.strip() == "0"


def test_a_command_that_ignores_sigterm_is_killed_too(rig: Rig, sandbox: Sandbox) -> None:
    assert rig.sh(sandbox, "trap '' TERM INT HUP; while :; do sleep 1; done", timeout=0.3).timed_out


def test_output_before_a_timeout_is_kept(rig: Rig, sandbox: Sandbox) -> None:
    assert rig.sh(sandbox, "echo early; sleep 99", timeout=0.5).stdout == "early\n"


def test_a_background_process_neither_holds_up_exec_nor_dies_with_it(rig: Rig, sandbox: Sandbox) -> None:
    started = time.monotonic()
    rig.sh(sandbox, "sleep 6666 & echo started")
    assert time.monotonic() - started < 10
    assert rig.sh(sandbox, "ps -e -o args | grep -c '[s]leep 6666'").stdout.strip() == "1"


def test_commands_run_side_by_side(rig: Rig, sandbox: Sandbox) -> None:
    async def both() -> list[str]:
        wait = "for i in $(seq 100); do [ -e /tmp/ready ] && echo met && exit; sleep 0.1; done"
        results = await asyncio.gather(sandbox.exec(["sh", "-c", wait]), sandbox.exec(["touch", "/tmp/ready"]))
        return [result.stdout for result in results]

    assert rig.run(both()) == ["met\n", ""]


def test_a_process_talks_over_its_pipes(rig: Rig, sandbox: Sandbox) -> None:
    async def talk() -> tuple[bytes, bytes, int]:
        process = await sandbox.spawn(["sh", "-c", "read line; echo got $line; echo bad >&2; cat >/dev/null; exit 5"])
        await process.write(b"hello\n")
        answer, complaint = await process.read(), await process.read_stderr()
        await process.close_stdin()
        code = await process.wait()
        assert await process.read() == b""
        return answer, complaint, code

    assert rig.run(talk()) == (b"got hello\n", b"bad\n", 5)


def test_a_process_carries_megabytes_both_ways(rig: Rig, sandbox: Sandbox) -> None:
    async def echo() -> int:
        process = await sandbox.spawn(["cat"])
        sender = asyncio.create_task(process.write(b"y" * 8_000_000))
        size = 0
        while size < 8_000_000:
            size += len(await process.read())
        await sender
        await process.close_stdin()
        return size + len(await process.read()) + await process.wait()

    assert rig.run(echo()) == 8_000_000


def test_writing_to_a_process_that_is_gone_is_a_broken_pipe(rig: Rig, sandbox: Sandbox) -> None:
    async def write() -> None:
        process = await sandbox.spawn(["true"])
        await process.wait()
        with pytest.raises(BrokenPipeError):
            for _ in range(100):
                await process.write(b"x" * 100_000)

    rig.run(write())


def test_killing_a_process_kills_what_it_started(rig: Rig, sandbox: Sandbox) -> None:
    async def kill() -> int:
        process = await sandbox.spawn(["sh", "-c", "setsid sleep 5555 & echo up; sleep 5555"])
        await process.read()
        await process.kill()
        return await process.wait()

    assert rig.run(kill()) == -9
    assert rig.sh(sandbox, "ps -e -o args | grep -c '[s]leep 5555'").stdout.strip() == "0"


def test_entering_a_phase_kills_everything_of_the_one_before_and_keeps_files(rig: Rig, sandbox: Sandbox) -> None:
    script = "echo kept >/app/file; setsid sh -c 'while :; do date >/app/alive; sleep 0.05; done' >/dev/null 2>&1 &"
    rig.sh(sandbox, script)
    rig.run(sandbox.enter("verifier", "none"))
    assert rig.sh(sandbox, "cat /app/file").stdout == "kept\n"
    assert rig.sh(sandbox, "rm -f /app/alive; sleep 0.5; ls /app").stdout == "file\n"


def test_a_process_of_a_phase_that_ended_reports_its_death(rig: Rig, sandbox: Sandbox) -> None:
    async def outlive() -> tuple[int, bytes]:
        process = await sandbox.spawn(["sh", "-c", "echo last words; sleep 99"])
        await asyncio.sleep(0.3)
        await sandbox.enter("verifier", "none")
        return await process.wait(), await process.read()

    assert rig.run(outlive()) == (-9, b"last words\n")


def test_uploaded_files_keep_content_and_mode(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "tests"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "test.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "test.sh").chmod(0o755)
    (source / "deep" / "er" / "data").write_bytes(bytes(range(256)))
    (source / "near").symlink_to("deep/er/data")
    rig.run(sandbox.upload(source, "/tests/here"))
    assert rig.run(sandbox.exec(["/tests/here/test.sh"])).stdout == "ran\n"
    assert (
        rig.sh(sandbox, "cmp /tests/here/near /tests/here/deep/er/data && stat -c %u /tests/here/test.sh").exit_code
        == 0
    )


def test_an_upload_replaces_files(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "one").write_text("new")
    rig.sh(sandbox, "echo old >/app/one; ln -s /app/one /app/two")
    rig.run(sandbox.upload(tmp_path / "one", "/app/two"))
    assert rig.sh(sandbox, "cat /app/one /app/two; test -L /app/two").stdout == "old\nnew"


@pytest.mark.parametrize(("mode", "made"), [(0o777, "777"), (0o700, "755")], ids=["open", "private"])
def test_an_empty_directory_is_made_with_its_mode_and_readable(
    rig: Rig, sandbox: Sandbox, tmp_path: Path, mode: int, made: str
) -> None:
    source = tmp_path / "empty"
    source.mkdir()
    source.chmod(mode)
    rig.run(sandbox.upload(source, "/logs/new"))
    assert rig.sh(sandbox, "stat -c %a /logs/new; ls -A /logs/new").stdout == f"{made}\n"


def test_an_upload_leaves_the_mode_of_a_directory_that_was_there(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o700)
    rig.sh(sandbox, "mkdir -m 711 /app/here")
    rig.run(sandbox.upload(tmp_path / "empty", "/app/here"))
    assert rig.sh(sandbox, "stat -c %a /app/here").stdout == "711\n"


REMOVED = {
    "a-file": "echo x >/app/gone",
    "a-tree": "mkdir -p /app/gone/a/b; touch /app/gone/a/f /app/gone/a/b/f; ln -s /app/kept /app/gone/a/link",
    "a-link": "ln -s /app/kept /app/gone",
    "a-pipe": "mkfifo /app/gone",
    "nothing": "true",
    "nothing-below-a-file": "rm -r /app; echo kept >/app",
    "without-rights": "mkdir -p /app/gone/a/b; touch /app/gone/a/b/f; chmod 000 /app/gone/a/b /app/gone/a /app/gone",
    "in-a-read-only-directory": "mkdir /app/gone; chmod 555 /app",
    "very-deep": 'python3 -c \'import os\nos.chdir("/app")\nfor _ in range(3000): os.mkdir("gone"); os.chdir("gone")\'',
}


@pytest.mark.parametrize("made", REMOVED)
def test_what_is_removed_is_gone_and_nothing_else(rig: Rig, sandbox: Sandbox, made: str) -> None:
    if made == "very-deep" and (rig.image or rig.backend.name == "ssh"):
        pytest.skip("it takes seconds there, and the code is the local sandbox's")
    rig.sh(sandbox, f"mkdir /app/kept; touch /app/kept/f; {REMOVED[made]}")
    rig.run(sandbox.enter("verifier", "none"))
    rig.run(sandbox.remove("/app/gone"))
    left = rig.sh(sandbox, "find /app -type f; stat -c %a /app", cwd="/").stdout.split()
    assert left[0] == ("/app" if made == "nothing-below-a-file" else "/app/kept/f")
    assert left[1:] == [{"in-a-read-only-directory": "555", "nothing-below-a-file": "644"}.get(made, "755")]


@pytest.mark.parametrize("path", ["/", "/app/..", "app"], ids=["the-root", "upwards", "relative"])
def test_what_is_no_path_in_the_sandbox_is_not_removed(rig: Rig, sandbox: Sandbox, path: str) -> None:
    with pytest.raises(SandboxError, match=r"whole sandbox|\.\.|absolute"):
        rig.run(sandbox.remove(path))


@pytest.mark.parametrize("target", ["/etc/hostname", "../../outside"], ids=["absolute", "upwards"])
def test_a_link_out_of_an_upload_is_refused(rig: Rig, sandbox: Sandbox, tmp_path: Path, target: str) -> None:
    source = tmp_path / "tests"
    source.mkdir()
    (source / "bad").symlink_to(target)
    with pytest.raises(SandboxError, match="bad is a link to"):
        rig.run(sandbox.upload(source, "/tests"))


def test_a_special_file_is_not_uploaded(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    os.mkfifo(tmp_path / "tests" / "pipe")
    with pytest.raises(SandboxError, match="neither a file nor a directory"):
        rig.run(sandbox.upload(tmp_path / "tests", "/tests"))


def test_a_relative_target_is_refused(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError, match="absolute"):
        rig.run(sandbox.upload(tmp_path / "file", "app/file"))


def test_downloads_bring_files_and_leave_links_and_pipes_behind(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    rig.sh(sandbox, "mkdir -p /app/a/b; echo 1 >/app/a/b/one; mkfifo /app/a/pipe; ln -s /etc/passwd /app/a/link")
    rig.run(sandbox.download("/app/a", tmp_path / "out" / "a"))
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert found == {"a", "a/b", "a/b/one"}
    assert (tmp_path / "out/a/b/one").read_text() == "1\n"


@pytest.mark.parametrize(
    "path", ["/app/none", "/app/file/below", "/app/link"], ids=["absent", "below-a-file", "a-link"]
)
def test_a_download_of_what_is_no_file_says_so(rig: Rig, sandbox: Sandbox, tmp_path: Path, path: str) -> None:
    rig.sh(sandbox, "echo x >/app/file; ln -s /app/file /app/link")
    with pytest.raises(FileNotFoundError):
        rig.run(sandbox.download(path, tmp_path / "out"))


def test_the_endpoint_answers_in_an_agents_phase(rig: Rig, sandbox: Sandbox) -> None:
    async def call() -> tuple[str, str, int | None]:
        endpoint = EchoEndpoint()
        url = await sandbox.reach(endpoint)
        result = await sandbox.exec(["python3", "-c", CONNECT.format(port=url.rpartition(":")[2])])
        await endpoint.close()
        return url, result.stdout + result.stderr, result.exit_code

    url, output, code = rig.run(call())
    assert (url.startswith("http://"), output.strip(), code) == (True, "echo", 0)


def test_the_endpoint_can_be_reached_again_in_a_later_phase(rig: Rig, sandbox: Sandbox) -> None:
    async def call(network: str) -> str:
        endpoint = EchoEndpoint()
        await sandbox.enter("agent", network)  # type: ignore[arg-type]
        url = await sandbox.reach(endpoint)
        result = await sandbox.exec(["python3", "-c", CONNECT.format(port=url.rpartition(":")[2])])
        await endpoint.close()
        return result.stdout.strip()

    assert [rig.run(call(network)) for network in ("proxy", "public", "proxy")] == ["echo"] * 3


def test_sandboxes_side_by_side_reach_each_its_own_endpoint(rig: Rig) -> None:
    async def live(word: str) -> str:
        endpoint = EchoEndpoint(word)
        sandbox = await rig.backend.create(rig.spec())
        try:
            await sandbox.enter("agent", "proxy")
            url = await sandbox.reach(endpoint)
            result = await sandbox.exec(["python3", "-c", CONNECT.format(port=url.rpartition(":")[2])])
        finally:
            await endpoint.close()
            await sandbox.stop()
        return result.stdout.strip()

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*map(live, words))

    words = [f"word-{number}" for number in range(6)]
    assert rig.run(all_at_once()) == words


# Asks the way out for a host, and prints how it answers.
ASK = """\
import os, socket, urllib.parse
way = urllib.parse.urlsplit(os.environ["http_proxy"])
with socket.create_connection((way.hostname, way.port), 20) as connection:
    connection.sendall(b"CONNECT other.invalid:443 HTTP/1.1\\r\\n\\r\\n")
    print(connection.makefile().readline().strip())
"""


def test_a_list_of_hosts_leads_to_these_and_to_the_endpoint(rig: Rig, sandbox: Sandbox) -> None:
    if "allowlist" not in rig.backend.capabilities.networks:
        with pytest.raises(SandboxError, match="cannot hold a phase to a list of hosts"):
            rig.run(sandbox.enter("agent", "allowlist", ("listed.invalid",)))
        return

    async def call() -> tuple[str, str]:
        endpoint = EchoEndpoint()
        await sandbox.enter("agent", "allowlist", ("listed.invalid", "*.files.invalid"))
        url = await sandbox.reach(endpoint)
        echo = await sandbox.exec(["python3", "-c", CONNECT.format(port=url.rpartition(":")[2])])
        asked = await sandbox.exec(["sh", "-c", 'test -z "$http_proxy" || exec python3 -c "$0"', ASK])
        await endpoint.close()
        return echo.stdout.strip(), asked.stdout.strip() + asked.stderr

    echo, answer = rig.run(call())
    assert echo == "echo"
    refused = "HTTP/1.1 403 other.invalid is none of the hosts that the task allows: listed.invalid, *.files.invalid"
    # At Daytona it is Daytona that filters, and there is no way out of ours.
    assert answer == ("" if sandbox.backend == "daytona" else refused)


def test_a_phase_without_network_has_no_endpoint(rig: Rig, sandbox: Sandbox) -> None:
    rig.run(sandbox.enter("verifier", "none"))
    with pytest.raises(SandboxError, match="none"):
        rig.run(sandbox.reach(EchoEndpoint()))


@pytest.mark.parametrize("writable", [False, True], ids=["read-only", "writable"])
def test_mounts_are_seen_and_protected(rig: Rig, tmp_path: Path, writable: bool) -> None:
    source = tmp_path / "agent"
    source.mkdir()
    source.chmod(0o777)
    (source / "program").write_text("here")
    if writable and rig.backend.name in ("ssh", "daytona"):
        with pytest.raises(SandboxError, match="cannot be written to"):
            rig.create(mounts=(Mount(source, "/opt/benchflow", writable=True),))
        return
    if writable and os.environ.get("DOCKER_HOST", "").startswith("tcp"):
        with pytest.raises(SandboxError, match="cannot be written by a container on another machine"):
            rig.create(mounts=(Mount(source, "/opt/benchflow", writable=True),))
        return
    sandbox = rig.create(mounts=(Mount(source, "/opt/benchflow/agents/demo", writable=writable),))
    assert rig.sh(sandbox, "cat /opt/benchflow/agents/demo/program").stdout == "here"
    rig.sh(sandbox, "echo x >/opt/benchflow/agents/demo/new")
    assert (source / "new").exists() is writable


def test_a_stopped_sandbox_leaves_no_process_and_refuses_work(rig: Rig) -> None:
    spec = rig.spec()
    sandbox = rig.run(rig.backend.create(spec))
    rig.run(sandbox.spawn(["sleep", "99"]))
    deadline = time.monotonic() + 20
    while not processes_of(spec.scratch) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(spec.scratch)
    rig.run(sandbox.stop())
    rig.run(sandbox.stop())
    assert processes_of(spec.scratch) == []
    with pytest.raises(SandboxError, match="stopped"):
        rig.run(sandbox.exec(["true"]))


def test_cancelling_a_command_kills_it(rig: Rig, sandbox: Sandbox) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(sandbox.exec(["sh", "-c", "setsid sleep 4444 & sleep 4444"]))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    rig.run(cancel())
    assert rig.sh(sandbox, "ps -e -o args | grep -c '[s]leep 4444'").stdout.strip() == "0"


def test_cancelled_anywhere_it_leaves_nothing(rig: Rig) -> None:
    spec = rig.spec()

    async def life() -> None:
        sandbox = await rig.backend.create(rig.spec())
        try:
            await sandbox.enter("agent", "proxy")
            endpoint = EchoEndpoint()
            try:
                await sandbox.reach(endpoint)
                process = await sandbox.spawn(["sleep", "3333"])
                await sandbox.exec(["true"])
                await process.kill()
                await sandbox.enter("verifier", "none")
                await sandbox.exec(["sleep", "0.05"])
            finally:
                await asyncio.shield(endpoint.close())
        finally:
            await asyncio.shield(sandbox.stop())

    async def cut(after: int) -> bool:
        """Cancel after so many turns of the loop; False: it ended by itself first."""
        task = asyncio.create_task(life())
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
            return False
        return True

    # Turns of a waiting loop are spent waiting, so cuts by time reach what cuts by turns do not.
    async def cut_late(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(life(), seconds)

    # Lives of seconds are cut less often than those of milliseconds.
    usual = (4, 10, 0.03) if rig.backend.name == "ssh" else (12, 24, 0.004)
    turns, cuts, pause = (3, 6, 0.25) if rig.image else usual
    for turn in range(turns):
        assert rig.run(cut(turn))
    for step in range(cuts):
        rig.run(cut_late(pause * (step + 1)))
    assert processes_of(spec.scratch.parent) == []
    assert not any(processes_of(left) for left in spec.scratch.parent.iterdir())
    assert rig.run(_other_tasks()) == []


async def _other_tasks() -> list[str]:
    await asyncio.sleep(0.05)
    return [str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_descriptors_do_not_add_up(rig: Rig) -> None:
    def live() -> None:
        sandbox = rig.create()
        rig.run(sandbox.enter("agent", "proxy"))
        rig.run(sandbox.spawn(["sleep", "99"]))
        rig.sh(sandbox, "true")
        rig.run(sandbox.enter("verifier", "none"))
        rig.sh(sandbox, "sleep 99", timeout=0.05)
        rig.run(sandbox.stop())

    for _ in range(4):  # pools of threads and connections fill up to what they may have
        live()
    before = _open_descriptors()
    for _ in range(2 if rig.image or rig.backend.name == "ssh" else 5):
        live()
    # A connection may be let go of a moment after what needed it.
    until = time.monotonic() + 20
    while _open_descriptors() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert _open_descriptors() <= before


def test_owners_and_modes_are_kept_between_phases(rig: Rig, sandbox: Sandbox) -> None:
    rig.sh(sandbox, "mkdir /app/locked; echo x >/app/locked/f; chmod 600 /app/locked/f; chmod 500 /app/locked")
    rig.run(sandbox.enter("verifier", "none"))
    assert rig.sh(sandbox, "stat -c %a /app/locked /app/locked/f").stdout == "500\n600\n"
