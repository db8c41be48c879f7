"""Links and forged files that a sandbox leaves for the host to stumble over."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.contracts import Mount
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Sandbox

pytestmark = pytest.mark.skipif(backend.available() is not None, reason=str(backend.available()))

CANARY = "canary-52c8e0"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    made = rig.create()
    rig.run(made.enter("agent", "proxy"))
    return made


LINKS = {
    "absolute": "ln -s {host} /app/way",
    "upwards": "ln -s ../../../../../../../..{host} /app/way",
    "through-proc": "ln -s /proc/1/root{host} /app/way",
    "chained": "ln -s {host} /app/other; ln -s other /app/way",
    "a-loop": "ln -s way /app/way",
}


@pytest.mark.parametrize("link", LINKS)
def test_an_upload_through_a_link_stays_inside(rig: Rig, sandbox: Sandbox, tmp_path: Path, link: str) -> None:
    host = tmp_path / "host"
    host.mkdir()
    source = tmp_path / "file"
    source.write_text("uploaded")
    rig.sh(sandbox, LINKS[link].format(host=host))
    try:
        rig.run(sandbox.upload(source, "/app/way/file"))
    except SandboxError:
        assert link in ("a-loop", "through-proc")
    assert list(host.iterdir()) == []


@pytest.mark.parametrize("link", LINKS)
def test_a_download_through_a_link_stays_inside(rig: Rig, sandbox: Sandbox, tmp_path: Path, link: str) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text(CANARY)
    rig.sh(sandbox, LINKS[link].format(host=host))
    for source in ("/app/way/file", "/app/way", "/app"):
        try:
            rig.run(sandbox.download(source, tmp_path / "out"))
        except (FileNotFoundError, SandboxError):
            continue
    assert all(CANARY not in path.read_text() for path in tmp_path.glob("out/**/*") if path.is_file())
    assert not any(path.is_symlink() for path in tmp_path.glob("out/**/*"))


@pytest.mark.parametrize("link", LINKS)
def test_a_removal_through_a_link_stays_inside(rig: Rig, sandbox: Sandbox, tmp_path: Path, link: str) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").touch()
    rig.sh(sandbox, LINKS[link].format(host=host) + "; mkdir /app/tree; cp -P /app/way /app/tree")
    for path in ("/app/way/file", "/app/tree", "/app/way"):
        try:
            rig.run(sandbox.remove(path))
        except SandboxError:
            assert link == "a-loop"
    assert [path.name for path in host.iterdir()] == ["file"]
    assert rig.sh(sandbox, "ls -A /app").stdout.split() == (["other"] if link == "chained" else [])


def test_a_link_that_changes_while_files_are_copied_leads_nowhere(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    source = tmp_path / "file"
    source.write_text("uploaded")

    async def race() -> None:
        flip = (
            f"mkdir /app/real; while :; do ln -sfn {host} /app/way; rm /app/way; mkdir /app/way; rm -rf /app/way; done"
        )
        process = await sandbox.spawn(["sh", "-c", flip])
        for _ in range(300):
            try:
                await sandbox.upload(source, "/app/way/file")
            except SandboxError:
                continue
        await process.kill()

    rig.run(race())
    assert list(host.iterdir()) == []


def test_links_in_place_of_mount_points_lead_nowhere(rig: Rig, tmp_path: Path) -> None:
    """Bubblewrap makes missing mount points through links, and while it does the host is at /oldroot."""
    host = tmp_path / "host"
    host.mkdir()
    host.chmod(0o777)
    agent = tmp_path / "agent"
    agent.mkdir()
    sandbox = rig.create(mounts=(Mount(agent, "/opt/benchflow/agents/demo"),))
    rig.sh(sandbox, "true")
    rig.run(sandbox.enter("setup", "none"))
    root = next(tmp_path.glob("scratch/*/*/root"))
    for name in ("opt", "proc", "dev", "usr"):
        shutil.rmtree(root / name)
        (root / name).symlink_to(f"/oldroot{host}")
    for name in ("bin", "lib", "etc/alternatives"):
        if (root / name).is_symlink():
            (root / name).unlink()
        else:
            shutil.rmtree(root / name)
        (root / name).symlink_to(f"/newroot/../oldroot{host}")
    assert rig.sh(sandbox, "ls /opt/benchflow/agents /usr/bin/env").stdout.split() == [
        "/usr/bin/env",
        "/opt/benchflow/agents:",
        "demo",
    ]
    assert list(host.iterdir()) == []


@pytest.mark.parametrize(
    "attack",
    [
        "rm /etc/passwd; ln -s {host} /etc/passwd",
        "rm /etc/passwd; mkfifo /etc/passwd",
        "head -c 9000000 /dev/zero >/etc/passwd",
    ],
    ids=["link", "pipe", "large"],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's sandbox has one user")
def test_a_forged_passwd_neither_hangs_nor_shows_the_hosts(
    rig: Rig, sandbox: Sandbox, tmp_path: Path, attack: str
) -> None:
    (tmp_path / "host").write_text("agent:x:4242:4242::/:/bin/sh\n")
    rig.sh(sandbox, attack.format(host=tmp_path / "host"))
    with pytest.raises(SandboxError, match="passwd"):
        rig.sh(sandbox, "true", user="agent", timeout=10)
