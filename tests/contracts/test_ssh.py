"""What is SSH's own: who is let in and believed, connections that break, slots of several hosts, and what is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes import ssh
from pytest_benchflow.sandboxes._ssh import far as _far
from pytest_benchflow.sandboxes._ssh.connect import connect as connect_to
from pytest_benchflow.sandboxes._ssh.far_sandbox import key_of
from pytest_benchflow.sandboxes._ssh.far_ship import ship
from pytest_benchflow.sandboxes._ssh.hosts import read_host
from tests import sshhost
from tests.contracts.sandboxrig import EchoEndpoint, Rig, make_task, processes_of
from tests.contracts.test_sandboxes import CONNECT

pytest.importorskip("paramiko")

from pytest_benchflow.sandboxes.ssh import SshBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.sshhost import Sshd

    Connect = Callable[..., SshBackend]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """Return a maker of backends whose client has a server's HOME; they are closed in the end."""
    made: list[SshBackend] = []

    def make(sshd: Sshd, *hosts: str) -> SshBackend:
        monkeypatch.setenv("HOME", str(sshd.home))
        made.append(SshBackend(hosts or [sshd.address]))
        return made[-1]

    yield make
    for backend in made:
        asyncio.run(backend.close())


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[Sshd]:
    """Return a server that a test may treat as it likes."""
    with sshhost.running(tmp_path / "sshd") as made:
        yield made


@pytest.fixture
def known(sshd: Sshd) -> Iterator[Path]:
    """Return the client's list of known hosts, which is as it was in the end."""
    yield sshd.home / ".ssh" / "known_hosts"
    sshd.be_known()
    (sshd.home / ".ssh" / "config").unlink(missing_ok=True)


def daemons(sshd: Sshd) -> list[int]:
    return [int((place / "pid").read_text()) for place in sshd.sessions()]


def wait_until(true: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    assert true()


def befriend(mine: Sshd, other: Sshd) -> None:
    """Let the client of one server know another one, and be let in there."""
    with (mine.home / ".ssh" / "known_hosts").open("a") as known:
        known.write((other.home / ".ssh" / "known_hosts").read_text())
    with (other.place / "authorized").open("a") as authorized:
        authorized.write((mine.place / "authorized").read_text())


def test_an_unknown_host_is_refused_with_what_to_do(sshd: Sshd, connect: Connect, known: Path) -> None:
    known.write_text("")
    reason = connect(sshd).available()
    assert reason is not None
    assert "is not known" in reason
    assert f"ssh -p {sshd.port} {sshd.user}@127.0.0.1" in reason
    assert known.read_text() == ""


def test_a_changed_host_key_is_refused_with_what_to_do(sshd: Sshd, connect: Connect, known: Path) -> None:
    sshd.make_key(sshd.place / "other")
    kind, key = (sshd.place / "other.pub").read_text().split()[:2]
    known.write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    reason = connect(sshd).available()
    assert reason is not None
    assert "has changed" in reason
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}'" in reason


def test_a_key_that_is_not_let_in_is_told(sshd: Sshd, connect: Connect, known: Path) -> None:
    sshd.make_key(sshd.home / ".ssh" / "other")
    config = known.with_name("config")
    config.write_text(f"Host *\n  IdentitiesOnly yes\n  IdentityFile {known.with_name('other')}\n")
    reason = connect(sshd).available()
    assert reason is not None
    assert f"does not let {sshd.user} in" in reason


def test_nobody_who_has_no_key_is_let_in(sshd: Sshd, connect: Connect, known: Path) -> None:
    known.with_name("config").write_text("Host *\n  IdentitiesOnly yes\n  IdentityFile none\n")
    sshd.key.rename(sshd.key.with_name("elsewhere"))
    try:
        reason = connect(sshd).available()
    finally:
        sshd.key.with_name("elsewhere").rename(sshd.key)
    assert reason is not None
    assert f"does not let {sshd.user} in: there is no key to log in with; `ssh -p {sshd.port}" in reason


def test_nobody_who_listens_is_told(connect: Connect, sshd: Sshd) -> None:
    reason = connect(sshd, "127.0.0.1:1").available()
    assert reason is not None
    assert "127.0.0.1:1 (127.0.0.1, port 1) cannot be reached" in reason


CONFIGS = {
    "alias": "Host box\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {key}\n",
    "accept-new": (
        "Host box\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  StrictHostKeyChecking accept-new\n"
        "  UserKnownHostsFile {home}/.ssh/new\n"
    ),
    "jump": ("Host box\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  ProxyJump {user}@127.0.0.1:{port}\n"),
    "command": (
        "Host box\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  ProxyCommand python3 {home}/carry.py %h %p\n"
    ),
}
CARRY = """\
import os, socket, sys, threading
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def inward():
    while data := there.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=inward).start()
while data := os.read(0, 65536):
    there.sendall(data)
there.shutdown(socket.SHUT_WR)
"""


@pytest.mark.parametrize("way", CONFIGS)
def test_a_host_is_reached_as_the_configuration_says(sshd: Sshd, connect: Connect, known: Path, way: str) -> None:
    facts = {"port": sshd.port, "user": sshd.user, "key": sshd.key, "home": sshd.home}
    known.with_name("config").write_text(CONFIGS[way].format(**facts))
    (sshd.home / "carry.py").write_text(CARRY)
    backend = connect(sshd, "box")
    assert backend.available() is None
    assert backend.place == "box"
    if way == "accept-new":
        assert f"[127.0.0.1]:{sshd.port} " in known.with_name("new").read_text()


def test_what_was_going_on_goes_on_over_a_new_connection(own_sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    backend = connect(own_sshd)

    async def main(rig: Rig) -> None:
        sandbox = await backend.create(rig.spec())
        await sandbox.enter("agent", "proxy")
        endpoint = EchoEndpoint()
        url = await sandbox.reach(endpoint)
        command = asyncio.create_task(sandbox.exec(["sh", "-c", "while [ ! -e /tmp/on ]; do sleep 0.1; done; echo on"]))
        process = await sandbox.spawn(["cat"])
        await process.write(b"before\n")
        assert await process.read() == b"before\n"
        own_sshd.cut()
        for word in (b"one\n", b"two\n"):
            await process.write(word * 10_000)
            size = 0
            while size < 40_000:
                size += len(await process.read())
            own_sshd.cut()
        await sandbox.exec(["touch", "/tmp/on"])
        assert (await command).stdout == "on\n"
        result = await sandbox.exec(["python3", "-c", CONNECT.format(port=url.rpartition(":")[2])])
        assert result.stdout == "echo\n"
        await process.close_stdin()
        assert await process.wait() == 0
        await sandbox.stop()
        await endpoint.close()
        await backend.close()

    with Rig(backend, tmp_path) as rig:
        rig.run(main(rig))
    wait_until(lambda: own_sshd.sessions() == [])


def test_a_far_side_that_is_killed_is_told_of_and_leaves_nothing(
    own_sshd: Sshd, connect: Connect, tmp_path: Path
) -> None:
    backend = connect(own_sshd)

    async def main(rig: Rig) -> None:
        spec = rig.spec()
        sandbox = await backend.create(spec)
        process = await sandbox.spawn(["sleep", "3333"])
        assert processes_of(spec.scratch)
        for pid in daemons(own_sshd):
            os.kill(pid, signal.SIGKILL)
        for work in (process.wait, process.read):
            with pytest.raises(SandboxError, match="was lost and could not be made again: the far side ended"):
                await work()
        assert await process.read_stderr() == b""
        with pytest.raises(SandboxError, match="was lost"):
            await sandbox.exec(["true"])
        await sandbox.stop()
        assert not processes_of(spec.scratch)
        assert await asyncio.to_thread(backend.reap, spec.scratch, backend.place)
        assert not [place for place in own_sshd.sessions() if (place / key_of(spec.scratch)).exists()]

    with Rig(backend, tmp_path) as rig:
        rig.run(main(rig))


def test_a_server_that_stays_away_is_told_of(
    own_sshd: Sshd, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_far, "_GIVE_UP_SEC", 1.0)
    backend = connect(own_sshd)

    async def main(rig: Rig) -> None:
        sandbox = await backend.create(rig.spec())
        own_sshd.stop()
        with pytest.raises(SandboxError, match=r"was lost and could not be made again: .*cannot be reached"):
            await sandbox.exec(["sleep", "60"])
        with pytest.raises(SandboxError, match=r"could not be removed, .*cannot be reached"):
            await sandbox.stop()

    with Rig(backend, tmp_path) as rig:
        rig.run(main(rig))
    for pid in daemons(own_sshd):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: own_sshd.sessions() == [])


def test_reaping_ends_exactly_the_session_that_made_a_sandbox(own_sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    mine, others = connect(own_sshd), connect(own_sshd)

    async def main(rig: Rig) -> None:
        specs = [rig.spec(), rig.spec()]
        kept, lost = await others.create(specs[0]), await mine.create(specs[1])
        for sandbox in (kept, lost):
            await sandbox.spawn(["sleep", "2222"])
        assert len(own_sshd.sessions()) == 2
        assert await asyncio.to_thread(others.reap, specs[1].scratch, others.place)
        assert processes_of(specs[0].scratch)
        assert not processes_of(specs[1].scratch)
        assert len(own_sshd.sessions()) == 1
        assert (await kept.exec(["echo", "here"])).stdout == "here\n"
        for sandbox in (kept, lost):
            with contextlib.suppress(SandboxError):
                await sandbox.stop()

    with Rig(others, tmp_path) as rig:
        rig.run(main(rig))


def test_a_host_that_cannot_be_reached_is_not_said_to_be_clean(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    backend = connect(sshd)
    assert backend.reap(tmp_path, backend.place) is True
    assert backend.reap(tmp_path, f"{backend.place},127.0.0.1:1") is False


def test_rollouts_are_spread_over_hosts_and_wait_for_a_slot(
    sshd: Sshd, own_sshd: Sshd, connect: Connect, tmp_path: Path
) -> None:
    befriend(own_sshd, sshd)
    hosts = [f"{sshd.address}*2", f"{own_sshd.address}*1"]
    backend, elsewhere = connect(own_sshd, *hosts), connect(own_sshd, *hosts)

    async def main(rig: Rig) -> None:
        first = [await backend.create(rig.spec()) for _ in range(2)]
        first.append(await elsewhere.create(rig.spec()))
        places = [sandbox.limits["host"]["applied"] for sandbox in first]
        assert sorted(places) == sorted([sshd.address, sshd.address, own_sshd.address])
        assert places[0] != places[1]
        waiting = asyncio.create_task(elsewhere.create(rig.spec()))
        done, _ = await asyncio.wait([waiting], timeout=1)
        assert not done
        await first[0].stop()
        last = await waiting
        assert last.limits["host"]["applied"] == places[0]
        for sandbox in (*first, last):
            await sandbox.stop()

    with Rig(backend, tmp_path) as rig:
        rig.run(main(rig))


def test_rollouts_leave_a_lost_host_and_fail_when_there_is_no_other(
    own_sshd: Sshd, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_far, "_GIVE_UP_SEC", 0.0)
    other = sshhost.Sshd(tmp_path / "other")
    other.start()
    befriend(own_sshd, other)
    backend = connect(own_sshd, f"{own_sshd.address}*9", other.address)

    async def main(rig: Rig) -> None:
        sandbox = await backend.create(rig.spec())
        assert sandbox.limits["host"]["applied"] == own_sshd.address
        own_sshd.stop()
        with pytest.raises(SandboxError, match="was lost"):
            await sandbox.exec(["sleep", "60"])
        with pytest.raises(SandboxError, match="could not be removed"):
            await sandbox.stop()
        assert await asyncio.to_thread(backend.available) is None
        sandbox = await backend.create(rig.spec())
        assert sandbox.limits["host"]["applied"] == other.address
        other.stop()
        with pytest.raises(SandboxError, match="was lost"):
            await sandbox.exec(["sleep", "60"])
        assert await asyncio.to_thread(backend.available) is None
        with pytest.raises(SandboxError, match="was lost"):
            await backend.create(rig.spec())
        with pytest.raises(SandboxError, match="could not be removed"):
            await sandbox.stop()

    assert backend.available() is None
    try:
        with Rig(backend, tmp_path) as rig:
            rig.run(main(rig))
    finally:
        other.stop()
    for each in (own_sshd, other):
        for pid in daemons(each):
            os.kill(pid, signal.SIGTERM)


def test_a_machine_that_isolates_nothing_says_so(plain_backend: SshBackend, tmp_path: Path) -> None:
    with Rig(plain_backend, tmp_path) as rig:
        sandbox = rig.create()
        assert "nothing is isolated" in sandbox.limits["isolation"]["warning"]
        assert plain_backend.capabilities.networks == {"proxy", "public"}
        assert plain_backend.capabilities.limits == frozenset()
        commands = make_task(tmp_path / "task", dockerfile="FROM debian:12\nRUN echo x > /etc/x\n")
        reason = plain_backend.unsupported(commands)
        assert reason is not None
        assert "where none can be made" in reason


def test_on_such_a_machine_our_program_does_not_stay(tmp_path: Path, connect: Connect) -> None:
    if reason := sshhost.why_no_sshd():
        pytest.skip(reason)
    sshd = sshhost.Sshd(tmp_path / "sshd", plain=True)
    sshd.start()
    try:
        backend, programs = connect(sshd), sshd.far_home / "cache" / "far"
        with pytest.warns(ssh.IsolationWarning, match="nothing is isolated"):
            assert backend.available() is None
        assert list(programs.iterdir()) == []
        # A process that is killed as it begins leaves it, until somebody looks for what that left.
        client = connect_to(read_host(sshd.address))
        ship(client)
        client.close()
        assert len(list(programs.iterdir())) == 1
        assert backend.reap(tmp_path / "scratch", sshd.address)
        assert list(programs.iterdir()) == []
    finally:
        sshd.stop()


def test_a_program_that_no_session_used_for_long_goes(own_sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    programs = own_sshd.far_home / "cache" / "far"
    for name, days in (("old", 30), ("lately", 3)):
        (programs / name / "pytest_benchflow").mkdir(parents=True)
        os.utime(programs / name, (time.time() - days * 86400,) * 2)
    backend = connect(own_sshd)
    assert backend.available() is None
    (ours,) = (path for path in programs.iterdir() if path.name != "lately")
    assert ours.name != "old"
    os.utime(ours, (time.time() - 30 * 86400,) * 2)
    asyncio.run(backend.close())
    assert connect(own_sshd).available() is None
    assert ours.stat().st_mtime > time.time() - 86400


def test_on_such_a_machine_nothing_is_touched_that_was_there(plain_backend: SshBackend, tmp_path: Path) -> None:
    with Rig(plain_backend, tmp_path) as rig:
        first = rig.create()
        rig.sh(first, "mkdir -p /srv/mine/app; echo precious >/srv/mine/app/file; echo x >/app/file")
        rig.run(first.stop())
        with pytest.raises(SandboxError, match="/srv/mine/app is there already"):
            rig.create(make_task(tmp_path / "task", workdir="/srv/mine/app"))
        last = rig.create()
        assert rig.sh(last, "cat /srv/mine/app/file; ls /app").stdout == "precious\n"
        rig.sh(last, "rm -r /srv/mine")


def test_what_such_a_machine_does_not_remove_is_told(plain_backend: SshBackend, tmp_path: Path) -> None:
    with Rig(plain_backend, tmp_path) as rig:
        sandbox: Any = rig.create()
        rig.sh(sandbox, "echo /proc/version >> /var/tmp/benchflow-rollout/made")
        with pytest.raises(SandboxError, match=r"could not be removed: .*/proc/version"):
            rig.run(sandbox.stop())
        rig.run(sandbox._script("sed -i /proc/d /var/tmp/benchflow-rollout/made"))
        rig.run(sandbox.stop())
        assert rig.sh(rig.create(), "ls /app").stdout == ""


def test_on_such_a_machine_a_cut_connection_is_told_and_nothing_stays(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := sshhost.why_no_sshd():
        pytest.skip(reason)
    monkeypatch.setattr(ssh, "_AGAIN_SEC", 0.0)
    sshd = sshhost.Sshd(tmp_path / "sshd", plain=True)
    sshd.start()
    try:
        backend = connect(sshd)
        with pytest.warns(ssh.IsolationWarning, match="nothing is isolated"):
            assert backend.available() is None
        with Rig(backend, tmp_path) as rig:
            spec = rig.spec()
            sandbox = rig.run(backend.create(spec))
            process = rig.run(sandbox.spawn(["sleep", "1111"]))
            wait_until(lambda: processes_of(spec.scratch))
            sshd.cut()
            for work in (process.read, process.wait):
                with pytest.raises(SandboxError, match="was lost"):
                    rig.run(work())
            assert rig.run(process.read_stderr()) == b""
            with pytest.raises(SandboxError, match="was lost"):
                rig.run(sandbox.exec(["true"]))
            rig.run(sandbox.stop())
            assert not processes_of(spec.scratch)
            assert rig.sh(rig.create(), "ls /app; ls /var/tmp").stdout == "benchflow-rollout\n"
        asyncio.run(backend.close())
    finally:
        sshd.stop()
