"""The far side's parts that need no machine: it runs without packages, links lose nothing, hosts are read."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.sandboxes._ssh.hosts import SshHost, read_host, read_hosts
from pytest_benchflow.sandboxes._ssh.link import Link
from pytest_benchflow.sandboxes._tar import pack, unpack

ROOT = Path(__file__).parents[3]


def test_the_far_side_runs_on_the_standard_library_alone() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import pytest_benchflow.sandboxes._ssh.far_main"
    done = subprocess.run([sys.executable, "-ISc", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


HOSTS = {
    "box": SshHost("box"),
    "me@box:2222*4": SshHost("box", "me", 2222, 4),
    "[::1]:22": SshHost("::1", None, 22),
    "box.example*1": SshHost("box.example", slots=1),
}


@pytest.mark.parametrize("text", HOSTS, ids=["name", "all", "ipv6", "slots"])
def test_hosts_are_read(text: str) -> None:
    assert read_host(text) == HOSTS[text]


WRONG = {"empty": "", "option": "-oProxyCommand=x", "port": "box:70000", "slots": "box*0", "space": "me @box"}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"\[user@\]host\[:port\]\[\*slots\]"):
        read_host(text)


def test_a_host_is_named_with_one_number_of_slots() -> None:
    assert read_hosts(["box*2", "box*2"]) == (SshHost("box", slots=2),)
    with pytest.raises(UsageError, match="with 2 and with 3 slots"):
        read_hosts(["box*2", "box*3"])


@pytest.mark.parametrize("seed", range(20))
def test_a_link_delivers_all_once_and_in_order_over_connections_that_break(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - only what is invented depends on it
    got: tuple[bytearray, bytearray] = (bytearray(), bytearray())
    sides = (Link(got[0].extend), Link(got[1].extend))
    wires: tuple[bytearray, bytearray] = (bytearray(), bytearray())  # towards each side
    sent: tuple[bytearray, bytearray] = (bytearray(), bytearray())

    def connect() -> None:
        for side, wire, other in ((0, wires[1], sides[1]), (1, wires[0], sides[0])):
            wire.clear()
            sides[side].detach()
            sides[side].attach(wire.extend, other.received)

    def carry(side: int, size: int) -> None:
        data = bytes(wires[side][:size])
        del wires[side][:size]
        sides[side].take(data)

    connect()
    for _ in range(400):
        side = chance.randrange(2)
        kind = chance.random()
        if kind < 0.4:
            data = chance.randbytes(chance.randrange(1, 90_000))
            sent[1 - side].extend(data)
            sides[side].send(data)
        elif kind < 0.9:
            carry(side, chance.randrange(1, 200_000))
        elif kind < 0.95:
            sides[side].tell()
        else:
            connect()
    connect()
    for side in (0, 1):
        carry(side, len(wires[side]))
    assert got == sent


@pytest.mark.parametrize("name", ["/etc/x", "it/../../x"], ids=["absolute", "upwards"])
def test_an_archive_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    archive = BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    archive.seek(0)
    with pytest.raises(SandboxError, match="no path below it"):
        unpack(archive, tmp_path / "out")


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_text("x")
        (tmp_path / name / "link").symlink_to("deep/file")
    shutil.copystat(ROOT, tmp_path / "two" / "deep" / "file")
    (tmp_path / "two" / "deep" / "file").chmod((tmp_path / "one" / "deep" / "file").stat().st_mode)
    digests = {pack({"it": tmp_path / name}, BytesIO()) for name in ("one", "two")}
    assert len(digests) == 1
