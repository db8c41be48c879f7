"""The audit: advisories, ignores that expire, and a service that does not answer. pip-audit itself runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[2] / ".ci" / "audit.py"
HASH = "--hash=sha256:" + "0" * 64
ADVISORY = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "summary": "invented",
    "affected": [
        {
            "package": {"name": "leaky", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.1"}]}],
        }
    ],
}


class Advisories(BaseHTTPRequestHandler):
    """Answer as the public advisory service does, knowing one flaw of one package."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = {"vulns": [ADVISORY]} if asked["package"]["name"] == "leaky" else {}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Yield the URL of a local advisory service."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Advisories) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()
        thread.join()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Return a lock committed in a repository of its own, beside a copy of the script."""
    shutil.copy(SCRIPT, tmp_path / "audit.py")
    (tmp_path / "audit-ignores.toml").write_text("", encoding="utf-8")
    lock = tmp_path / "ci.txt"
    lock.write_text(f"sound==2.0 {HASH}\nleaky==1.0 {HASH}\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return lock


def git(place: Path, *arguments: str) -> None:
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    subprocess.run(["git", *who, "-C", str(place), *arguments], check=True, capture_output=True)


def commit(place: Path) -> None:
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--allow-empty", "--message", "state")


def audit(lock: Path, service: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GITHUB_BASE_REF"}
    return subprocess.run(
        [sys.executable, str(lock.with_name("audit.py")), str(lock)],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "BENCHFLOW_OSV_URL": service, "BENCHFLOW_CI_BASE": ""},
    )


def ignore(lock: Path, expires: str, reason: str = "never reached from here") -> None:
    entry = f'[[ignore]]\nid = "{ADVISORY["id"]}"\nreason = "{reason}"\nexpires = {expires}\n'
    lock.with_name("audit-ignores.toml").write_text(entry, encoding="utf-8")


def test_advisory_on_an_unchanged_lock_is_red_and_labelled(lock: Path, service: str) -> None:
    commit(lock.parent)
    done = audit(lock, service)
    assert done.returncode == 1
    assert "new advisory on an unchanged lock: leaky 1.0: GHSA-aaaa-bbbb-cccc (fixed in: 1.1)" in done.stdout


def test_advisory_that_came_with_a_changed_lock_is_red_too(lock: Path, service: str) -> None:
    lock.write_text(lock.read_text(encoding="utf-8") + f"other==1.0 {HASH}\n", encoding="utf-8")
    commit(lock.parent)
    done = audit(lock, service)
    assert done.returncode == 1
    assert "advisory on a changed lock: leaky 1.0" in done.stdout


def test_lock_without_advisories_is_green(lock: Path, service: str) -> None:
    lock.write_text(f"sound==2.0 {HASH}\n", encoding="utf-8")
    done = audit(lock, service)
    assert done.returncode == 0
    assert "no known advisory for 1 locked packages" in done.stdout


def test_ignore_with_a_reason_holds_until_it_expires(lock: Path, service: str) -> None:
    ignore(lock, "2999-01-01")
    assert audit(lock, service).returncode == 0
    ignore(lock, "2020-01-01")
    done = audit(lock, service)
    assert done.returncode == 1
    assert "expired on 2020-01-01" in done.stdout
    assert "leaky 1.0" in done.stdout


def test_ignore_without_a_reason_fails(lock: Path, service: str) -> None:
    ignore(lock, "2999-01-01", reason="")
    done = audit(lock, service)
    assert done.returncode == 1
    assert "needs an id, a reason and expires" in done.stdout


def test_service_out_of_reach_is_skipped_in_plain_sight(lock: Path) -> None:
    done = audit(lock, "http://127.0.0.1:9/")
    assert done.returncode == 0
    assert done.stdout.startswith("SKIPPED: no advisory service answered")


def test_expired_ignore_fails_even_when_the_service_is_out_of_reach(lock: Path) -> None:
    ignore(lock, "2020-01-01")
    assert audit(lock, "http://127.0.0.1:9/").returncode == 1


def test_lock_that_cannot_be_read_is_no_skip(lock: Path, service: str) -> None:
    lock.write_text("sound\n", encoding="utf-8")
    done = audit(lock, service)
    assert done.returncode == 1
    assert "SKIPPED" not in done.stdout
