"""Whatever goes wrong at Daytona ends in the right error, and nothing of ours is left there."""

from __future__ import annotations

import asyncio
import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.contracts import Installation, Mount
from pytest_benchflow.errors import AgentError, SandboxError
from pytest_benchflow.rollout.ledger import Ledger, facts_of, make
from pytest_benchflow.sandboxes._daytona.api import Api
from pytest_benchflow.sandboxes._daytona.box import Box
from pytest_benchflow.tasks.task import Environment
from tests.contracts.sandboxrig import EchoEndpoint, Rig, make_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.daytonahost import DaytonaHost

HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def rig(daytona: DaytonaHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name, value in daytona.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("BENCHFLOW_DAYTONA_ACP_TRANSPORT", raising=False)
    monkeypatch.setattr("pytest_benchflow.sandboxes._daytona.api._PAUSE_SEC", 0.05)
    backend: Any = registry.load("sandboxes", "daytona", "backend")
    if reason := backend.available():
        pytest.skip(reason)
    with Rig(backend, tmp_path, "debian:12") as made:
        yield made
        daytona.heal()


def only(daytona: DaytonaHost) -> str:
    """Return the id of the one sandbox there is."""
    (name,) = daytona.sandboxes
    return name


def test_what_can_be_asked_again_is_and_a_command_runs_once(rig: Rig, daytona: DaytonaHost) -> None:
    sandbox = rig.create()
    for route in ("POST /files/bulk-upload", "GET /process/session/*", "POST /files/bulk-download", "DELETE /files"):
        daytona.fail(route, status=500, times=1)
    daytona.fail("POST /process/session", status=429, times=1)
    # The command was started, and only the answer says that it was not.
    daytona.spoil("POST /process/session/*/exec")
    daytona.spoil("DELETE /process/session/*")
    assert rig.sh(sandbox, "echo once >> /root/count; cat /root/count; exit 3").exit_code == 3
    assert rig.sh(sandbox, "cat /root/count").stdout == "once\n"
    assert daytona.sessions(only(daytona)) == 0


def test_a_service_that_stays_broken_is_an_error_of_the_sandbox(rig: Rig, daytona: DaytonaHost) -> None:
    sandbox = rig.create()
    daytona.fail("POST /files/bulk-upload", status=502, times=None, message="bad gateway")
    with pytest.raises(SandboxError, match="bad gateway"):
        rig.sh(sandbox, "true")
    daytona.heal()
    rig.run(sandbox.stop())
    assert daytona.sandboxes == {}


def test_a_call_that_hangs_is_given_up_and_asked_again_but_not_for_ever(
    rig: Rig, daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in (Api, Box):
        monkeypatch.setitem(owner.ask.__kwdefaults__ or {}, "timeout", 0.5)
    sandbox = rig.create()
    daytona.hang("GET /process/session/*")
    daytona.hang("POST /process/session")
    assert rig.sh(sandbox, "echo here").stdout == "here\n"
    daytona.hang("GET /process/session/*", times=None)
    with pytest.raises(SandboxError, match=r"asking for a command's end: .*no answer in time"):
        rig.sh(sandbox, "true")
    daytona.heal()
    rig.run(sandbox.stop())
    assert daytona.sandboxes == {}


def test_a_quota_that_is_used_up_is_told_and_not_asked_again(rig: Rig, daytona: DaytonaHost) -> None:
    daytona.refuse_quota()
    with pytest.raises(SandboxError, match="Total CPU limit exceeded"):
        rig.create()
    assert daytona.requests["POST /sandbox"] == 1


def test_what_a_failed_request_made_is_found_by_its_labels_and_removed(rig: Rig, daytona: DaytonaHost) -> None:
    others = daytona.add({"benchflow.managed": "1:ann", "benchflow.owner": "ann"}, count=3, age=HOUR)
    daytona.spoil("POST /sandbox", times=3)
    with pytest.raises(SandboxError, match="Gateway Time-out"):
        rig.create()
    assert daytona.requests["POST /sandbox"] == 3
    assert set(daytona.sandboxes) == set(others)
    daytona.spoil("POST /sandbox")
    rig.create()
    assert len(daytona.sandboxes) == 4


def test_a_sandbox_whose_making_was_not_answered_is_removed_when_we_stop_waiting(
    rig: Rig, daytona: DaytonaHost
) -> None:
    daytona.lose_reply("POST /sandbox")

    async def give_up() -> None:
        async with asyncio.timeout(3):
            await rig.backend.create(rig.spec())

    with pytest.raises(TimeoutError):
        rig.run(give_up())
    assert daytona.requests["POST /sandbox"] == 1
    assert daytona.sandboxes == {}


def test_a_sandbox_whose_making_is_not_answered_is_found_and_used(
    rig: Rig, daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_benchflow.sandboxes._daytona.create._LOOK_SEC", 0.2)
    others = daytona.add({"benchflow.managed": "1:ann", "benchflow.owner": "ann"}, count=2, age=HOUR)
    daytona.fail("GET /sandbox", status=500, times=1)
    daytona.lose_reply("POST /sandbox")
    sandbox = rig.create()
    assert rig.sh(sandbox, "echo here").stdout == "here\n"
    assert daytona.requests["POST /sandbox"] == 1
    rig.run(sandbox.stop())
    assert set(daytona.sandboxes) == set(others)


def test_a_key_that_nobody_knows_makes_nothing_and_leaves_no_doubt(
    rig: Rig, daytona: DaytonaHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "of-nobody")
    spec, ledger = rig.spec(), Ledger(tmp_path / "own.jsonl", "session")
    with pytest.raises(SandboxError, match="refuses the key in DAYTONA_API_KEY"):
        rig.run(make(ledger, tmp_path, rig.backend, spec, facts_of(rig.backend, spec)))
    ledger.close()
    events = [json.loads(line)["event"] for line in (tmp_path / "sandboxes.jsonl").read_text().splitlines()]
    assert events == ["create", "deleted"]
    assert daytona.requests["POST /sandbox"] == 0


def test_commands_leave_no_session_and_a_service_lives_on(rig: Rig, daytona: DaytonaHost) -> None:
    sandbox = rig.create()
    assert rig.sh(sandbox, "setsid sleep 4712 >/dev/null 2>&1 & sleep 0.5").exit_code == 0

    async def many() -> None:
        for start in range(0, 20, 4):
            commands = (sandbox.exec(["sh", "-c", f"exit {start + one}"]) for one in range(4))
            codes = [result.exit_code for result in await asyncio.gather(*commands)]
            assert codes == [start + one for one in range(4)]

    rig.run(many())
    # Only the session of the command that left a service is there.
    assert daytona.sessions(only(daytona)) == 1
    assert "sleep 4712" in daytona.processes(only(daytona))
    rig.run(sandbox.enter("verifier", "none"))
    assert daytona.sessions(only(daytona)) == 0
    assert daytona.processes(only(daytona)) == []


def test_commands_work_among_thousands_of_sleeping_shells_and_a_phase_ends_them(rig: Rig, daytona: DaytonaHost) -> None:
    sandbox = rig.create()
    daytona.sleeping_shells(only(daytona), 3000)
    assert rig.sh(sandbox, "echo here").stdout == "here\n"
    assert daytona.sessions(only(daytona)) == 3000
    rig.run(sandbox.enter("verifier", "none"))
    assert daytona.processes(only(daytona)) == []


@pytest.mark.parametrize("audit", ["audit-log", "audit-log-late", "audit-forbidden"])
def test_a_deletion_by_somebody_else_names_event_actor_time_and_company(
    rig: Rig, daytona: DaytonaHost, audit: str
) -> None:
    sandbox = rig.create()
    ours = only(daytona)
    theirs = daytona.add({"benchflow.owner": "ann"})[0]
    if audit == "audit-forbidden":
        daytona.forbid_audit()
    elif audit == "audit-log-late":
        daytona.plane.audit_late = datetime.timedelta(seconds=2)

    async def lose() -> list[Any]:
        running = asyncio.create_task(sandbox.exec(["sleep", "600"]))
        while not any("sleep 600" in line for line in daytona.processes(ours)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        events = await asyncio.to_thread(daytona.delete_by_other, ours, theirs, actor="carl")
        with pytest.raises(SandboxError, match="was deleted") as caught:
            await running
        assert caught.value.category == "sandbox_deleted"
        return [events, json.loads(caught.value.details or "")]

    events, details = rig.run(lose())
    if audit != "audit-forbidden":
        assert details["event_id"] == events[0].id
        assert details["actor"] == "carl@example.org"
        assert details["time"] == events[0].created.isoformat()
        assert details["deleted_with_it"] == [theirs]
    else:
        assert details["event_id"] is None
        assert "concluded" in details["source"]
        assert details["audit_log"].endswith("does not allow it with this key (Forbidden resource)")
    rig.run(sandbox.stop())


def test_a_full_disk_is_named(rig: Rig, daytona: DaytonaHost, tmp_path: Path) -> None:
    daytona.fill_disks(2 << 20)
    sandbox = rig.create()
    (tmp_path / "large").write_bytes(b"x" * (4 << 20))
    with pytest.raises(SandboxError, match=r"disk is full .*10 GB"):
        rig.run(sandbox.upload(tmp_path / "large", "/app/large"))
    rig.run(sandbox.stop())
    assert daytona.sandboxes == {}


def test_a_network_that_is_not_switched_lets_nothing_run(rig: Rig, daytona: DaytonaHost) -> None:
    sandbox = rig.create()
    daytona.plane.deaf_to_networks = True
    with pytest.raises(SandboxError, match="did not switch"):
        rig.run(sandbox.enter("agent", "public"))


def test_one_key_of_three_operators_and_slow_pages_lose_only_what_is_ours(
    rig: Rig, daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_DAYTONA_OWNER", "bob")
    for owner in ("ann", "eve"):
        daytona.add({"benchflow.managed": f"1:{owner}", "benchflow.owner": owner}, count=200, age=HOUR)
    daytona.add({"benchflow.managed": "1"}, count=100, age=HOUR, dated=False)
    others = set(daytona.sandboxes)
    daytona.plane.page_size = 50
    daytona.delay("GET /sandbox", 0.05)
    spec = rig.spec()
    sandbox = rig.run(rig.backend.create(spec))
    (ours,) = set(daytona.sandboxes) - others
    assert daytona.sandboxes[ours].labels["benchflow.owner"] == "bob"
    assert daytona.sandboxes[ours].labels["benchflow.managed"] == "1:bob"
    assert len(rig.run(rig.backend.remains())) == 501
    monkeypatch.setenv("BENCHFLOW_DAYTONA_OWNER", "ann")
    assert rig.backend.reap(spec.scratch, rig.backend.place) is False
    assert ours in daytona.sandboxes
    monkeypatch.setenv("BENCHFLOW_DAYTONA_OWNER", "bob")
    assert rig.backend.reap(spec.scratch, rig.backend.place) is True
    assert set(daytona.sandboxes) == others
    rig.run(sandbox.stop())


def test_a_killed_session_leaves_nothing_when_its_time_is_over(rig: Rig, daytona: DaytonaHost) -> None:
    rig.create(make_task(rig.base / "long"))
    box = daytona.sandboxes[only(daytona)]
    assert box.auto_stop > 0
    assert box.auto_delete >= 0
    assert box.ttl > box.auto_stop
    daytona.pass_time(box.auto_stop - 1)
    assert box.state == "started"
    daytona.pass_time(box.ttl)
    assert daytona.sandboxes == {}


def test_an_installation_is_made_once_and_kept_as_a_snapshot(
    rig: Rig, daytona: DaytonaHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_benchflow.sandboxes._daytona.install._TICK_SEC", 0.05)
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "cache"))
    script = "mkdir -p /opt/benchflow/bin && date +%s%N > /opt/benchflow/bin/made && echo kept > /root/with-it"
    installation = Installation("invented", "1", script, timeout_sec=60)
    task = replace(make_task(tmp_path / "task"), environment=Environment(docker_image="debian:12"))
    daytona.fail("GET /snapshots/*", status=503)
    first = rig.run(rig.backend.install(installation, task, tmp_path / "log"))
    assert daytona.requests["POST /sandbox"] == 1
    assert daytona.sandboxes == {}
    (name,) = daytona.plane.snapshots
    assert first == (Mount(Path(name), "/opt/benchflow", there=True),)
    assert rig.run(rig.backend.install(installation, task, tmp_path / "log")) == first
    assert daytona.requests["POST /sandbox"] == 1
    made = {rig.sh(rig.create(task, mounts=first), "cat /opt/benchflow/bin/made").stdout for _ in range(2)}
    assert len(made) == 1
    broken = replace(installation, script="echo no such package; exit 3")
    with pytest.raises(AgentError, match="no such package"):
        rig.run(rig.backend.install(broken, task, tmp_path / "log"))
    assert list(daytona.plane.snapshots) == [name]


PROGRAM = "read -r a; echo before $a; read -r b; echo the-last-word $b; read -r c; echo after $c; exit 4"


async def talk(process: Any, said: bytes, wanted: bytes) -> bytes:
    await process.write(said)
    heard = b""
    async with asyncio.timeout(60):
        while wanted not in heard:
            chunk = await process.read()
            assert chunk, heard
            heard += chunk
    return heard


def test_a_frame_that_is_lost_at_a_terminal_comes_after_attaching_once_more(rig: Rig, daytona: DaytonaHost) -> None:
    daytona.silence_pty(b"the-last-word")
    sandbox = rig.create()

    async def work() -> None:
        process = await sandbox.spawn(["sh", "-c", PROGRAM])
        assert await talk(process, b"1\n", b"before 1\n") == b"before 1\n"
        assert await talk(process, b"2\n", b"the-last-word 2\n") == b"the-last-word 2\n"
        assert await talk(process, b"3\n", b"after 3\n") == b"after 3\n"
        assert await process.wait() == 4

    rig.run(work())
    assert daytona.requests["GET /process/pty/create-connect"] == 2


@pytest.mark.parametrize("transport", ["pty", "ssh"])
def test_a_broken_connection_is_attached_to_once_and_then_given_up(
    rig: Rig, daytona: DaytonaHost, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    monkeypatch.setenv("BENCHFLOW_DAYTONA_ACP_TRANSPORT", transport)
    sandbox = rig.create()
    assert sandbox.transport == transport
    cut = daytona.cut_ptys if transport == "pty" else daytona.cut_ssh

    async def work() -> None:
        process = await sandbox.spawn(["sh", "-c", PROGRAM])
        await talk(process, b"1\n", b"before 1\n")
        assert await asyncio.to_thread(cut, only(daytona)) >= 1
        assert await talk(process, b"2\n", b"the-last-word 2\n") == b"the-last-word 2\n"
        assert await asyncio.to_thread(cut, only(daytona)) >= 1
        with pytest.raises(SandboxError, match="broke again") as caught:
            await process.wait()
        assert caught.value.category == "transport"
        await process.kill()
        await sandbox.enter("verifier", "none")

    rig.run(work())
    assert daytona.processes(only(daytona)) == []
    # No other way is taken unasked.
    assert (daytona.requests["GET /process/pty/create-connect"] == 0) == (transport == "ssh")


CALL = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as door:
    door.sendall(b"hello\\n")
    print(door.recv(99).decode())
"""


def test_the_model_is_reached_through_a_gateway_that_forwards_nothing_and_again_after_a_cut(
    rig: Rig, daytona: DaytonaHost
) -> None:
    sandbox = rig.create()

    async def work() -> None:
        await sandbox.enter("agent", "proxy")
        endpoint = EchoEndpoint("from-the-model")
        port = (await sandbox.reach(endpoint)).rpartition(":")[2]
        call = ["python3", "-c", CALL, port]
        assert "from-the-model" in (await sandbox.exec(call)).stdout
        assert daytona.ssh_accesses(only(daytona)) == 1
        assert await asyncio.to_thread(daytona.cut_ssh, only(daytona)) >= 1
        async with asyncio.timeout(60):
            while "from-the-model" not in (await sandbox.exec(call)).stdout:  # noqa: ASYNC110  # the relay begins anew
                await asyncio.sleep(0.2)
        await sandbox.enter("verifier", "none")
        await endpoint.close()

    rig.run(work())
    assert daytona.ssh_accesses(only(daytona)) == 0
