"""The stand-in for Daytona, driven by the real client: what a backend's tests rely on is really so."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests import daytonahost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from tests.daytonahost import DaytonaHost

pytest.importorskip("daytona")

Work = "Callable[[Any], Awaitable[None]]"


@asynccontextmanager
async def client(host: DaytonaHost) -> AsyncIterator[Any]:
    from daytona import AsyncDaytona, DaytonaConfig

    config = DaytonaConfig(api_key=host.key, api_url=f"{host.url}/api", target="us", connection_pool_maxsize=10)
    async with AsyncDaytona(config) as daytona:
        yield daytona


def drive(host: DaytonaHost, work: Callable[[Any], Awaitable[None]]) -> None:
    """Run one coroutine with a client of the stand-in."""

    async def main() -> None:
        async with client(host) as daytona:
            await work(daytona)

    asyncio.run(main())


async def make(daytona: Any, image: Any = "python:3.12-slim", **params: Any) -> Any:
    from daytona import CreateSandboxFromImageParams

    return await daytona.create(CreateSandboxFromImageParams(image=image, **params))


def test_a_command_runs_inside_with_output_and_errors_as_one(daytona: DaytonaHost) -> None:
    async def work(client: Any) -> None:
        box = await make(client, env_vars={"COLOUR": "green"})
        done = await box.process.exec(
            "echo $COLOUR $SIZE; pwd; id -u; echo bad >&2; exit 3", cwd="/opt", env={"SIZE": "7"}
        )
        assert (done.exit_code, done.result) == (3, "green 7\n/opt\n0\nbad\n")
        # Nothing of this machine but its programs is there to be seen.
        seen = await box.process.exec("ls /home /root /srv; wc -l < /proc/net/dev; cat /proc/net/route | wc -l")
        assert seen.result == "/home:\ndaytona\nworker\n\n/root:\n\n/srv:\n3\n1\n"

    drive(daytona, work)


def test_a_time_limit_kills_the_shell_and_not_what_it_started(daytona: DaytonaHost) -> None:
    from daytona import DaytonaTimeoutError

    async def work(client: Any) -> None:
        box = await make(client)
        with pytest.raises(DaytonaTimeoutError, match="execution timeout"):
            await box.process.exec("setsid sleep 77 >/dev/null 2>&1 & sleep 78", timeout=1)
        await _until(lambda: sorted(daytona.processes(box.id)) == ["sleep 77", "sleep 78"])

    drive(daytona, work)


def test_deleting_kills_everything(daytona: DaytonaHost) -> None:
    from daytona import DaytonaNotFoundError

    async def work(client: Any) -> None:
        box = await make(client)
        await box.process.exec("setsid sleep 4711.25 >/dev/null 2>&1 &")
        await _until(lambda: daytona.processes(box.id) == ["sleep 4711.25"])
        assert _runs_here("sleep 4711.25")
        await box.delete()
        assert not _runs_here("sleep 4711.25")
        with pytest.raises(DaytonaNotFoundError):
            await client.get(box.id)

    drive(daytona, work)


def _runs_here(line: str) -> bool:
    from pathlib import Path

    wanted = line.replace(" ", "\0").encode() + b"\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == wanted:
                return True
        except OSError:
            continue
    return False


def test_a_session_stays_with_its_shell_until_it_is_deleted(daytona: DaytonaHost) -> None:
    from daytona import SessionExecuteRequest

    async def work(client: Any) -> None:
        box = await make(client)
        run = box.process.execute_session_command
        await box.process.create_session("one")
        done = await run("one", SessionExecuteRequest(command="cd /opt; echo out; echo err >&2; (exit 4)"))
        assert (done.exit_code, done.stdout, done.stderr) == (4, "out\n", "err\n")
        live = await run("one", SessionExecuteRequest(command="pwd; read -r word; echo got $word", run_async=True))
        status = await box.process.get_session_command("one", live.cmd_id)
        assert status.exit_code is None
        await box.process.send_session_command_input("one", live.cmd_id, "this\n")
        heard: list[str] = []
        await box.process.get_session_command_logs_async("one", live.cmd_id, heard.append, heard.append)
        assert "".join(heard) == "/opt\ngot this\n"
        assert (await box.process.get_session_command("one", live.cmd_id)).exit_code == 0
        assert daytona.sessions(box.id) == 1
        assert daytona.processes(box.id) == ["/bin/bash"]
        await box.process.delete_session("one")
        assert daytona.sessions(box.id) == 0
        assert daytona.processes(box.id) == []

    drive(daytona, work)


def test_a_session_ends_with_exit_and_its_command_has_no_code(daytona: DaytonaHost) -> None:
    from daytona import DaytonaError, SessionExecuteRequest

    async def work(client: Any) -> None:
        box = await make(client)
        await box.process.create_session("one")
        last = await box.process.execute_session_command("one", SessionExecuteRequest(command="exit 5", run_async=True))
        with pytest.raises(DaytonaError):
            await box.process.execute_session_command("one", SessionExecuteRequest(command="true"))
        assert (await box.process.get_session_command("one", last.cmd_id)).exit_code is None

    drive(daytona, work)


def test_a_terminal_echoes_resizes_and_tells_its_end(daytona: DaytonaHost) -> None:
    from daytona.common.pty import PtySize

    async def work(client: Any) -> None:
        box = await make(client)
        shown = bytearray()
        handle = await box.process.create_pty_session(
            "tty", on_data=shown.extend, pty_size=PtySize(rows=30, cols=100), envs={"COLOUR": "red"}
        )
        assert daytona.ptys(box.id) == 1
        await handle.resize(PtySize(rows=40, cols=120))
        await handle.send_input("stty size; echo $COLOUR; stty raw -echo; exit 7\n")
        assert (await handle.wait()).exit_code == 7
        assert b"stty size" in shown
        assert b"40 120\r\nred\r\n" in shown
        assert daytona.ptys(box.id) == 0
        other = await box.process.create_pty_session("other", on_data=shown.extend)
        await other.send_input("sleep 555\n")
        await other.kill()
        await other.wait()
        assert daytona.processes(box.id) == []

    drive(daytona, work)


def test_a_silent_terminal_gives_neither_output_nor_its_end_and_a_second_connection_hears(daytona: DaytonaHost) -> None:
    async def work(client: Any) -> None:
        daytona.silence_pty(b"the-last-word")
        box = await make(client)
        first, second = bytearray(), bytearray()
        handle = await box.process.create_pty_session("tty", on_data=first.extend)
        await handle.send_input("stty -echo; echo before; read -r x; echo the-last-$x; read -r y; echo after; exit 3\n")
        await _until(lambda: b"before\r" in first)
        await handle.send_input("word\n")
        await _until(lambda: "the-last-word" in daytona.plane.sandboxes[box.id].ptys["tty"].tail.decode())
        again = await box.process.connect_pty_session("tty", on_data=second.extend)
        await again.send_input("go\n")
        assert (await again.wait()).exit_code == 3
        assert b"after" in second
        assert b"the-last" not in first.replace(b"echo the-last-$x", b"")
        assert handle.is_connected()
        assert handle.exit_code is None
        await handle.disconnect()

    drive(daytona, work)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # what is waited for happens in another process
            await asyncio.sleep(0.02)


def test_files_go_both_ways_byte_for_byte(daytona: DaytonaHost, tmp_path: Path) -> None:
    from daytona import DaytonaNotFoundError, FileDownloadRequest, FileUpload

    async def work(client: Any) -> None:
        box = await make(client)
        data = bytes(range(256)) * 3
        (tmp_path / "from").write_bytes(data)
        await box.fs.upload_files([FileUpload(str(tmp_path / "from"), "/app/a b/ü.bin"), FileUpload(b"", "/app/none")])
        found = await box.fs.download_files(
            [FileDownloadRequest("/app/a b/ü.bin"), FileDownloadRequest("/app/none"), FileDownloadRequest("/nowhere")]
        )
        assert [one.result for one in found] == [data, b"", None]
        assert found[2].error_details.status_code == 404
        info = await box.fs.get_file_info("/app/a b/ü.bin")
        assert (info.name, info.size, info.is_dir) == ("ü.bin", 768, False)
        assert sorted(entry.name for entry in await box.fs.list_files("/app")) == ["a b", "none"]
        await box.fs.delete_file("/app", recursive=True)
        with pytest.raises(DaytonaNotFoundError):
            await box.fs.get_file_info("/app")

    drive(daytona, work)


def test_a_full_disk_is_told(daytona: DaytonaHost) -> None:
    from daytona import DaytonaError

    async def work(client: Any) -> None:
        daytona.fill_disks(1 << 20)
        box = await make(client)
        await box.fs.upload_file(b"x" * 1000, "/app/small")
        with pytest.raises(DaytonaError, match="No space left"):
            await box.fs.upload_file(b"x" * (2 << 20), "/app/large")
        done = await box.process.exec("head -c 2000000 /dev/zero > /tmp/more")
        assert done.exit_code == 1
        assert "No space left on device" in done.result

    drive(daytona, work)


def test_ssh_enters_the_sandbox_with_a_token_and_forwards_nothing(daytona: DaytonaHost) -> None:
    async def work(client: Any) -> None:
        box = await make(client)
        access = await box.create_ssh_access(expires_in_minutes=2880)
        assert access.expires_at - access.created_at == datetime.timedelta(minutes=2880)
        code, out = await _ssh(access.ssh_command, "hostname; cat; exit 9", b"some input\n")
        assert (code, out) == (9, b"sandbox\nsome input\n")
        assert daytona.ssh_accesses(box.id) == 1
        _, said = await _ssh(access.ssh_command, "-N", b"", "-oExitOnForwardFailure=yes", "-R127.0.0.1:0:127.0.0.1:1")
        assert b"remote port forwarding failed" in said
        await box.revoke_ssh_access(access.token)
        code, said = await _ssh(access.ssh_command, "true", b"")
        assert code == 255
        assert daytona.ssh_accesses(box.id) == 0

    drive(daytona, work)


async def _ssh(command: str, asked: str, stdin: bytes, *options: str) -> tuple[int | None, bytes]:
    words = [*command.split(), "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"]
    process = await asyncio.create_subprocess_exec(
        *words, "-oBatchMode=yes", *options, asked, stdin=-1, stdout=-1, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate(stdin)
    return process.returncode, out


def test_three_operators_share_a_key_and_lists_come_in_pages(daytona: DaytonaHost) -> None:
    from daytona import ListSandboxesQuery

    async def work(client: Any) -> None:
        for owner in ("ann", "bob", "eve"):
            daytona.add({"owner": owner}, count=334, age=datetime.timedelta(hours=2))
        daytona.plane.page_size = 50
        found = [box async for box in client.list(ListSandboxesQuery(labels={"owner": "bob"}))]
        assert len(found) == 334
        assert {box.labels["owner"] for box in found} == {"bob"}
        assert daytona.requests["GET /sandbox"] == 7

    drive(daytona, work)


def test_the_audit_log_tells_who_deleted_what_together(daytona: DaytonaHost) -> None:
    from daytona_api_client_async import AuditApi
    from daytona_api_client_async.exceptions import ForbiddenException

    async def work(client: Any) -> None:
        ours, theirs = daytona.add({"owner": "ann"})[0], daytona.add({"owner": "bob"})[0]
        daytona.delete_by_other(ours, theirs, actor="carl")
        api = AuditApi(client._api_client)
        page = await api.get_organization_audit_logs("org-tests", page=1, limit=50)
        first, second = page.items
        assert {(event.actor_id, event.action) for event in page.items} == {("carl", "delete")}
        assert {first.target_id, second.target_id} == {ours, theirs}
        assert first.metadata and second.metadata
        assert first.metadata["requestId"] == second.metadata["requestId"]
        daytona.forbid_audit()
        with pytest.raises(ForbiddenException):
            await api.get_organization_audit_logs("org-tests")

    drive(daytona, work)


def test_faults_come_as_often_as_asked_for(daytona: DaytonaHost) -> None:
    from daytona import DaytonaError, DaytonaForbiddenError

    async def work(client: Any) -> None:
        box = await make(client)
        daytona.fail("POST /process/execute", status=500, times=2)
        for _ in range(2):
            with pytest.raises(DaytonaError) as caught:
                await box.process.exec("true")
            assert caught.value.status_code == 500
        assert (await box.process.exec("true")).exit_code == 0
        daytona.refuse_quota()
        with pytest.raises(DaytonaForbiddenError, match="limit exceeded"):
            await make(client)
        daytona.heal()
        daytona.lose_reply("POST /sandbox")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await make(client, labels={"lost": "yes"})
        assert [found.labels["lost"] for found in daytona.sandboxes.values() if "lost" in found.labels] == ["yes"]

    drive(daytona, work)


def test_thousands_of_sleeping_shells_are_real_and_can_be_deleted(daytona: DaytonaHost) -> None:
    async def work(client: Any) -> None:
        box = await make(client)
        daytona.sleeping_shells(box.id, 3000)
        assert len(daytona.processes(box.id)) == 3000
        assert len(await box.process.list_sessions()) == 3000
        await box.process.delete_session("poll-00007")
        assert len(daytona.processes(box.id)) == 2999

    drive(daytona, work)


def test_time_stops_and_deletes_what_is_due(daytona: DaytonaHost) -> None:
    async def work(client: Any) -> None:
        idle = await make(client, auto_stop_interval=30, auto_delete_interval=60)
        old = await make(client, auto_stop_interval=0, ttl_minutes=90)
        kept = await make(client, auto_stop_interval=0)
        await idle.process.exec("echo here > /tmp/file; setsid sleep 99 >/dev/null 2>&1 &")
        daytona.pass_time(31)
        assert daytona.sandboxes[idle.id].state == "stopped"
        assert daytona.processes(idle.id) == []
        await idle.start()
        assert (await idle.process.exec("cat /tmp/file")).result == "here\n"
        daytona.pass_time(60)
        assert set(daytona.sandboxes) == {idle.id, kept.id}
        daytona.pass_time(61)
        assert set(daytona.sandboxes) == {kept.id}
        assert old.id not in daytona.sandboxes

    drive(daytona, work)


def test_an_image_is_built_once_and_a_snapshot_keeps_files(
    daytona: DaytonaHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daytona import CreateSandboxFromSnapshotParams, DaytonaError, Image

    daytonahost.allow_http(monkeypatch)
    (tmp_path / "data.txt").write_text("of the context\n")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        "FROM python:3.12-slim\nENV COLOUR=blue\nWORKDIR /work\nCOPY data.txt here.txt\nRUN date > /made\n"
    )

    async def work(client: Any) -> None:
        image = Image.from_dockerfile(dockerfile)
        box, twin = await make(client, image), await make(client, image)
        ask = "pwd; echo $COLOUR; cat here.txt /made"
        assert (await box.process.exec(ask)).result.startswith("/work\nblue\nof the context\n")
        assert (await box.process.exec(ask)).result == (await twin.process.exec(ask)).result
        assert daytona.builds == 1
        await box.process.exec("echo more > /root/more")
        await box.create_snapshot("kept")
        copy = await client.create(CreateSandboxFromSnapshotParams(snapshot="kept"))
        assert (await copy.process.exec("pwd; cat /root/more")).result == "/work\nmore\n"
        await client.snapshot.delete(await client.snapshot.get("kept"))
        with pytest.raises(DaytonaError, match="Snapshot kept not found"):
            await client.create(CreateSandboxFromSnapshotParams(snapshot="kept"))
        dockerfile.write_text("FROM python:3.12-slim\nRUN echo trying; false\n")
        with pytest.raises(DaytonaError, match="exit code: 1"):
            await make(client, Image.from_dockerfile(dockerfile))
        daytona.hide_image("nobody/knows:1")
        with pytest.raises(DaytonaError, match="manifest unknown"):
            await make(client, "nobody/knows:1")

    drive(daytona, work)
