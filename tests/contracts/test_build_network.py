"""While an image is built, its package tools reach the indexes that this host uses, and what they fetch stays."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import ipaddress
import shutil
import subprocess
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.sandboxes import _addresses, _egress
from pytest_benchflow.sandboxes._local import base as _base
from pytest_benchflow.sandboxes._local.overlay import why_no_overlay
from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import Rig, make_task
from tests.contracts.test_public_network import own_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator

WHY_NOT = backend.available() or why_no_overlay("/tmp")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """Yield a directory and the URL at which another machine, so it seems, serves it."""
    address = next((found for found in own_addresses() if isinstance(found, ipaddress.IPv4Address)), None)
    if address is None:
        pytest.skip("this machine has no address beside loopback that could stand for another's")
    files = tmp_path / "served"
    files.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer((str(address), 0), functools.partial(Quiet, directory=str(files)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(_egress, "look_up", lambda host: {"packages.test": [address]}[host])
    monkeypatch.setattr(_addresses, "is_own", lambda asked: asked != address)
    # As if it were a company's own, which no variable names but that of the package tool.
    monkeypatch.setattr(_addresses, "_PRIVATE", (ipaddress.ip_network(f"{address}/32"),))
    yield files, f"http://packages.test:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_pip_installs_from_the_hosts_index(
    rig: Rig, outside: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, url = outside
    page = files / "simple" / "invented-thing"
    page.mkdir(parents=True)
    name = "invented_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(page / name, "w") as wheel:
        wheel.writestr("invented_thing.py", "VALUE = 42\n")
        info = "invented_thing-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: invented-thing\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (page / "index.html").write_text(f'<a href="{name}">{name}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "packages.test")
    text = "FROM python:3.12\nRUN python3 -m pip install --break-system-packages invented-thing==1.0\n"
    sandbox = rig.create(make_task(rig.base / "task", dockerfile=text))
    shown = rig.sh(sandbox, 'python3 -c "import invented_thing; print(invented_thing.VALUE)"; env')
    assert shown.stdout.startswith("42\n")
    assert url not in shown.stdout


CONTROL = "Package: invented-tool\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.invalid>\n"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="a package is made with dpkg-deb")
def test_apt_installs_from_the_distributions_archive(
    rig: Rig, outside: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files, url = outside
    tree = tmp_path / "package"
    for path, words in {
        "DEBIAN/control": f"{CONTROL}Description: a tool\n",
        "usr/bin/invented-tool": "#!/bin/sh\n",
    }.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(words)
    (tree / "usr/bin/invented-tool").write_text("#!/bin/sh\necho tool\n")
    (tree / "usr/bin/invented-tool").chmod(0o755)
    (tree / "DEBIAN/postinst").write_text("#!/bin/sh\nadduser --system --group invented-daemon >/dev/null\n")
    (tree / "DEBIAN/postinst").chmod(0o755)
    package = files / "invented-tool.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", tree, package], check=True, stdout=subprocess.DEVNULL)
    data = package.read_bytes()
    facts = f"Filename: ./invented-tool.deb\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    (files / "Packages.gz").write_bytes(gzip.compress(f"{CONTROL}{facts}Description: a tool\n\n".encode()))
    monkeypatch.setattr(_base, "apt_sources", lambda: f"deb [trusted=yes] {url} ./\n")
    _base.base_digest.cache_clear()
    text = "FROM debian:12\nRUN apt-get update && apt-get install -y invented-tool && rm -rf /var/lib/apt/lists/*\n"
    sandbox = rig.create(make_task(rig.base / "task", dockerfile=text))
    _base.base_digest.cache_clear()
    shown = rig.sh(sandbox, "invented-tool; id -un invented-daemon; dpkg-query -W invented-tool")
    assert shown.stdout.split() == ["tool", "invented-daemon", "invented-tool", "1.0"]
    assert not Path("/usr/bin/invented-tool").exists()


SOURCES = """\
deb http://mirror.example.com/debian CODENAME main contrib # ours
deb [signed-by=/k.gpg] https://user:word@paid.example.com/debian CODENAME main
deb https://locked.example.com/debian CODENAME main
deb http://mirror.example.com/debian otherrelease main
deb https://packages.example.com/thing CODENAME stable
# deb http://off.example.com/debian CODENAME main
"""
STANZAS = """\
Types: deb deb-src
URIs: http://deb.example.com/debian
# a comment
Suites: CODENAME CODENAME-updates
Components: main
Signed-By: /usr/share/keyrings/some.gpg

Types: deb
Enabled: no
URIs: http://off.example.com/debian
Suites: CODENAME
Components: main
"""


def test_archives_that_ask_for_a_password_or_are_not_the_distributions_stay_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codename = _base._os_release().get("VERSION_CODENAME", "stable")
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(SOURCES.replace("CODENAME", codename))
    (tmp_path / "sources.list.d" / "some.sources").write_text(STANZAS.replace("CODENAME", codename))
    (tmp_path / "auth.conf").write_text("machine locked.example.com login user password word\n")
    monkeypatch.setattr(_base, "_APT", tmp_path)
    assert _base.apt_sources().splitlines() == [
        f"deb http://mirror.example.com/debian {codename} main contrib",
        f"deb [signed-by=/usr/share/keyrings/some.gpg] http://deb.example.com/debian {codename} main",
        f"deb [signed-by=/usr/share/keyrings/some.gpg] http://deb.example.com/debian {codename}-updates main",
    ]
