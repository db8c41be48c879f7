"""What an agent plants for the start of the next phase's programs is gone before that phase starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import Rig, make_task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Sandbox

pytestmark = pytest.mark.skipif(backend.available() is not None, reason=str(backend.available()))

# What every program's start depends on, and whether it starts without a complaint of the loader's.
STATE = """
cd /etc
ls -d ld* python* ssl/openssl.cnf nsswitch.conf
find ld* python* ssl/openssl.cnf nsswitch.conf -type f | sort | xargs sha256sum
stat -c '%n %a %F' / ld.so.* nsswitch.conf passwd group shadow
for name in bin sbin lib lib64; do echo $name $(readlink /$name); ls -d /$name/; done
ls -A /opt
"""
ATTACKS = {
    "preload": "echo /app/evil.so >/etc/ld.so.preload",
    "preload-as-a-link": "echo /app/evil.so >/app/list; ln -s /app/list /etc/ld.so.preload",
    "preload-as-a-directory": "mkdir -p /etc/ld.so.preload/deep",
    "cache": "echo forged >/etc/ld.so.cache",
    "cache-as-a-link": "cp /etc/ld.so.cache /app/; ln -sf /app/ld.so.cache /etc/ld.so.cache",
    "no-cache": "rm /etc/ld.so.cache",
    "search-path": "echo /app/lib >>/etc/ld.so.conf; chmod 4777 /etc/ld.so.conf",
    "search-paths-moved": "mv /etc /etc.own; mkdir -p /etc/ld.so.conf.d; echo /app >/etc/ld.so.conf.d/0",
    "musl-search-path": "echo /app/lib >/etc/ld-musl-x86_64.path",
    "python-start": "mkdir -p /etc/python3.99; echo 'raise SystemExit(0)' >/etc/python3.99/sitecustomize.py",
    "python-start-beside": "mv /etc /etc.own; mkdir -p /etc/python3.11; echo 0/0 >/etc/python3.11/sitecustomize.py",
    "openssl": "mkdir -p /etc/ssl; echo 'openssl_conf = /app/evil' >/etc/ssl/openssl.cnf",
    "openssl-through-a-link": "mkdir /s; echo evil >/s/openssl.cnf; mv /etc /etc.own; mkdir /etc; ln -s /s /etc/ssl",
    "name-services": "echo 'passwd: evil' >/etc/nsswitch.conf",
    "name-services-as-a-pipe": "rm /etc/nsswitch.conf; mkfifo /etc/nsswitch.conf",
    "etc-as-a-link": "cp -r /etc /app/etc; echo /x >/app/etc/ld.so.preload; mv /etc /etc.own; ln -s /app/etc /etc",
    "passwd-as-a-link": "cd /etc; cp passwd shadow /app; ln -sf /app/passwd passwd; ln -sf /app/shadow shadow",
    "group-as-a-pipe": "rm /etc/group; mkfifo /etc/group",
    "libraries": "mv /lib64 /lib64.own; mkdir -p /lib64/d /lib64.moved/d; echo >/lib64/ld-linux-x86-64.so.2",
    "programs": "mv /bin /bin.own; /usr/bin/mkdir /bin; /usr/bin/cp /usr/bin/true /bin/sh",
    "programs-as-a-link": "ln -sfn /app /bin",
    "spawner-as-a-directory": "mv /opt /opt.own; mkdir -p /opt/benchflow-spawner.py/deep",
    "locked-root": "chmod 000 /etc/ld.so.cache; chmod 700 /",
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    return rig.create()


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_next_phase_starts_as_the_first_did(rig: Rig, sandbox: Sandbox, attack: str) -> None:
    before = rig.sh(sandbox, STATE, cwd="/")
    rig.run(sandbox.enter("agent", "proxy"))
    rig.sh(sandbox, f"PATH=/usr/bin; {ATTACKS[attack]}")
    rig.run(sandbox.enter("verifier", "none"))
    after = rig.sh(sandbox, STATE, cwd="/")
    assert (after.stdout, after.stderr) == (before.stdout, before.stderr)
    assert rig.run(sandbox.exec(["python3", "-c", "import ssl; print('well')"])).stdout == "well\n"


def test_users_that_an_agent_added_stay(rig: Rig, sandbox: Sandbox) -> None:
    rig.run(sandbox.enter("agent", "proxy"))
    rig.sh(sandbox, "echo 'added:x:4242:4242::/:/bin/sh' >>/etc/passwd; echo 'added:x:4242:' >>/etc/group")
    rig.run(sandbox.enter("verifier", "none"))
    assert rig.sh(sandbox, "getent passwd added; getent group added").stdout.count("4242") == 3


def test_what_a_task_itself_puts_there_stays(rig: Rig, tmp_path: Path) -> None:
    task = make_task(tmp_path / "task", dockerfile="FROM debian\nCOPY nss.conf /etc/nsswitch.conf\n")
    (tmp_path / "task" / "environment" / "nss.conf").write_text("passwd: files\n")
    sandbox = rig.create(task)
    rig.sh(sandbox, "echo forged >/etc/nsswitch.conf")
    rig.run(sandbox.enter("verifier", "none"))
    assert rig.sh(sandbox, "cat /etc/nsswitch.conf").stdout == "passwd: files\n"
