"""`pytest-benchflow publish` against a hub of the tests' own, with the real client: what goes, what is said, and how
it ends when the hub fails or the process is killed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli
from pytest_benchflow.publish import upload
from pytest_benchflow.records.audit import write_audit
from pytest_benchflow.records.rundir import RunDir
from tests.hubhost import READER, WRITER
from tests.unit.publish.test_plan import KEY, answered, lose_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hubhost import HubHost, Repo

# The client's own, of how it calls its HTTP library.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

Capture = pytest.CaptureFixture[str]
_FILE = re.compile(r"(new|changed|there) +([\d,]+)  ([0-9a-f]{64})  (\S+)\Z")


@pytest.fixture
def repo(hub: HubHost) -> Repo:
    return hub.create("org/set")


@pytest.fixture
def ramp(tmp_path: Path) -> Path:
    """Return a job of three healthy rollouts, one of them with a large file, and one that is not healthy."""
    job = tmp_path / "jobs" / "ramp"
    for word in ("one", "two", "three"):
        answered(word, job)
    large = job / "two" / "artifacts" / "large.txt"
    large.parent.mkdir()
    large.write_text("".join(f"line {number}\n" for number in range(1000)), "utf-8")
    lose_events(answered("four", job))
    return job


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what is waited for, which takes no time."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


def publish(path: Path, *options: str) -> int:
    return cli.main(["publish", str(path), "--repo", "org/set", *options])


def files_of(repo: Repo, revision: str = "main") -> dict[str, tuple[int, str]]:
    return {path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in repo.files(revision).items()}


def listed(out: str) -> dict[str, tuple[str, int, str]]:
    """Return the files that a dry run listed: how, bytes, SHA-256, by path."""
    matches = [match for line in out.splitlines() if (match := _FILE.match(line))]
    return {match[4]: (match[1], int(match[2].replace(",", "")), match[3]) for match in matches}


def test_a_dry_run_lists_what_then_goes_and_writes_nothing(
    ramp: Path, hub: HubHost, repo: Repo, capsys: Capture
) -> None:
    assert publish(ramp, "--dry-run") == 0
    told = capsys.readouterr().out
    assert hub.writes == []
    assert repo.files() == {}
    assert {how for how, _, _ in listed(told).values()} == {"new"}
    left = f"left out (unhealthy_capture): {ramp / 'four'}: acp_trajectory_readable: trajectory/acp_trajectory.jsonl is"
    assert left in told
    assert "left out: 1 of 4 rollouts: unhealthy_capture 1\n" in told
    assert "3 rollouts of 4 seen: " in told
    assert told.endswith("nothing was written: this was a dry run\n")
    assert publish(ramp) == 0
    assert files_of(repo) == {path: (size, digest) for path, (_, size, digest) in listed(told).items()}
    assert hub.requests["PUT object"] == len(repo.objects) > 0
    capsys.readouterr()
    assert publish(ramp, "--dry-run") == 0
    again = capsys.readouterr().out
    assert listed(again) == {path: ("there", *rest) for path, (_, *rest) in listed(told).items()}
    assert "to upload: 0 files, 0 bytes" in again


def test_what_was_published_is_a_healthy_rollout_with_a_manifest_that_fits(
    ramp: Path, repo: Repo, tmp_path: Path, capsys: Capture
) -> None:
    assert publish(ramp) == 0
    for path, content in repo.files().items():
        target = tmp_path / "fetched" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    capsys.readouterr()
    assert cli.main(["review", "--json", str(tmp_path / "fetched" / "progress")]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["healthy"] == 3
    (whole,) = (tmp_path / "fetched" / "progress" / "tasks" / "manifests").glob("ramp__*/manifest.json")
    told = json.loads(whole.read_bytes())
    assert told["counts"] | {"bytes": 0} == {
        "seen": 4,
        "rollouts": 3,
        "canaries": 0,
        "left_out": {"unhealthy_capture": 1},
        "files": len(repo.files()) - 1,
        "bytes": 0,
        "redactions": 0,
    }
    assert told["left_out"] == [{"job": "ramp", "rollout": "four", "reason": "unhealthy_capture"}]
    for entry in told["rollouts"]:
        place = tmp_path / "fetched" / entry["path"]
        manifest = (place / "manifest.json").read_bytes()
        assert hashlib.sha256(manifest).hexdigest() == entry["manifest_sha256"]
        described = {file["path"]: (file["bytes"], file["sha256"]) for file in json.loads(manifest)["files"]}
        there = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
        del there["manifest.json"]
        assert described == {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in there.items()}


def test_a_second_run_sends_only_what_changed(ramp: Path, hub: HubHost, repo: Repo, capsys: Capture) -> None:
    assert publish(ramp) == 0
    hub.writes.clear()
    assert publish(ramp) == 0
    assert hub.writes == []
    assert "uploaded: nothing, as all of it is there" in capsys.readouterr().out
    before = set(repo.files())
    audited = ramp / "one"
    write_audit(RunDir(audited), verdict="publishable", by="Mia", note="")
    assert publish(ramp) == 0
    changed = [path.rsplit("/", 1)[-1] for commit in repo.log()[2:] for path in commit.changed]
    assert changed == ["audit.json", "manifest.json", "manifest.json"]
    assert {path.rsplit("/", 1)[-1] for path in set(repo.files()) - before} == {"audit.json", "manifest.json"}


def test_nothing_to_publish_and_wrong_use(ramp: Path, hub: HubHost, repo: Repo, capsys: Capture) -> None:
    assert publish(ramp / "four") == 1
    assert "nothing to publish: none of 1 rollout may go" in capsys.readouterr().out
    assert publish(ramp, "--require-audit") == 1
    assert "left out: 4 of 4 rollouts: no_audit 3, unhealthy_capture 1" in capsys.readouterr().out
    for arguments, said in (
        ([str(ramp / "nobody"), "--repo", "org/set"], "nobody does not exist; name a rollout, a job"),
        ([str(ramp), "--repo", "set"], "--repo is 'set'; it takes the name of a dataset repository"),
        ([str(ramp), "--repo", "../x/y"], "it takes the name of a dataset repository"),
        ([str(ramp), "--repo", "org/set", "--dataset", " "], "--dataset is ' '; it takes a name with a letter"),
        ([str(ramp), "--repo", "org/set", "--dataset", "../字"], "--dataset is '../字'; it takes a name with a letter"),
        ([str(ramp), "--repo", "org/set", "--path-template", "{x}/{id8}"], "there is no field {x}; it takes {dataset}"),
        ([str(ramp), "--repo", "org/set", "--pr", "7"], "org/set has no pull request 7; --pr new opens one"),
    ):
        assert cli.main(["publish", *arguments]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        publish(ramp, "--pr", "0")
    assert ended.value.code == 2
    assert "'0' is no pull request; it takes a number, or new" in capsys.readouterr().err
    assert hub.writes == []


def test_without_the_library(ramp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert publish(ramp, "--dry-run") == 2
    assert "pip install 'pytest-benchflow[hub]'" in capsys.readouterr().err


def test_a_pull_request(ramp: Path, hub: HubHost, repo: Repo, capsys: Capture) -> None:
    assert publish(ramp / "one", "--pr", "new") == 0
    told = capsys.readouterr().out
    assert "opened pull request 1; an interrupted publication goes on with --pr 1" in told
    assert f"at refs/pr/1 of {hub.endpoint}/datasets/org/set" in told
    assert repo.files() == {}
    first = files_of(repo, "refs/pr/1")
    assert len(first) == 10
    assert publish(ramp, "--pr", "1") == 0
    assert first.items() < files_of(repo, "refs/pr/1").items()
    assert list(repo.pulls) == [1]
    repo.pulls[1]["status"] = "merged"
    assert publish(ramp, "--pr", "1") == 2
    assert "pull request 1 of org/set is merged; --pr new opens another" in capsys.readouterr().err
    repo.pulls[1] |= {"status": "open", "isPullRequest": False}
    repo.pulls[1]["changes"] = None
    assert publish(ramp, "--pr", "1") == 2
    assert "1 is a discussion of org/set, and no pull request" in capsys.readouterr().err


def test_who_may_only_read_can_look_but_not_write(
    ramp: Path, hub: HubHost, repo: Repo, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    assert publish(ramp, "--dry-run") == 0
    assert publish(ramp) == 1
    assert "HTTP 403: you need write access to this repository; the token may not do this to org/set" in (
        capsys.readouterr().err
    )
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x1y2z3" * 6)
    assert publish(ramp) == 1
    said = capsys.readouterr().err
    assert "HTTP 401: Invalid credentials in Authorization header; the token is not accepted" in said
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(ramp / "no-token"))
    assert publish(ramp, "--dry-run") == 0
    assert publish(ramp) == 2
    assert "there is no token to write with; set HF_TOKEN, or run `hf auth login`" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", READER)
    assert publish(ramp, "--pr", "new") == 1
    assert capsys.readouterr().err.endswith("may not do this to org/set: it takes one with write access\n")
    monkeypatch.setenv("HF_TOKEN", "hf_schlüssel")
    assert publish(ramp) == 2
    assert "has characters that no token has" in capsys.readouterr().err
    monkeypatch.delenv("HF_TOKEN")
    hub.repos.clear()
    assert publish(ramp, "--dry-run") == 1
    assert "there is no dataset repository org/set, or who gives no token" in capsys.readouterr().err
    assert publish(ramp, "--dry-run", "--pr", "1") == 1
    assert "there is no dataset repository org/set, or who gives no token" in capsys.readouterr().err
    assert "POST commit" not in hub.writes


TRANSIENT: list[tuple[str, dict[str, object]]] = [
    ("GET info", {"status": 500}),
    ("GET tree", {"status": 503}),
    ("GET tree", {}),
    ("POST preupload", {"status": 500}),
    ("POST batch", {"status": 429, "headers": {"Retry-After": "3"}}),
    ("PUT object", {"status": 500}),
    ("PUT object", {}),
    ("POST commit", {"status": 500}),
    ("POST commit", {"status": 429, "headers": {"Retry-After": "7"}}),
    ("POST commit", {"status": 500, "lose_reply": True}),
    ("POST commit", {"lose_reply": True}),
    ("POST commit", {}),
    ("POST commit", {"status": 409}),
    ("POST commit", {"status": 412}),
]


@pytest.mark.parametrize(("route", "fault"), TRANSIENT, ids=str)
def test_a_passing_fault_is_tried_again_and_nothing_is_done_twice(
    ramp: Path, hub: HubHost, waits: list[float], route: str, fault: dict[str, object]
) -> None:
    repo = hub.create("org/set")
    hub.fail(route, **fault)  # type: ignore[arg-type]
    assert publish(ramp) == 0
    if isinstance(fault.get("headers"), dict):
        asked = float(fault["headers"]["Retry-After"])  # type: ignore[index]
        assert asked in waits or asked + 1 in waits
    changed = [path for commit in repo.log() for path in commit.changed]
    assert sorted(changed) == sorted(repo.files())
    assert len(repo.log()) == 2
    assert repo.log()[-1].changed[0].endswith("/manifest.json")


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize("status", [500, 429, 409, None])
def test_a_fault_that_stays_is_an_error_after_a_few_tries(
    ramp: Path, hub: HubHost, repo: Repo, capsys: Capture, status: int | None
) -> None:
    hub.fail("POST commit", status=status, times=99)
    assert publish(ramp) == 1
    assert hub.requests["POST commit"] == 5
    assert f"pytest-benchflow: error: {hub.endpoint}: {f'HTTP {status}' if status else ''}" in capsys.readouterr().err
    assert repo.files() == {}


@pytest.mark.parametrize("status", [400, 403, 413])
def test_a_refusal_is_not_tried_again(
    ramp: Path, hub: HubHost, waits: list[float], capsys: Capture, status: int
) -> None:
    hub.create("org/set")
    hub.fail("POST commit", status=status, times=99)
    assert publish(ramp) == 1
    assert hub.requests["POST commit"] == 1
    assert f"HTTP {status}: " in capsys.readouterr().err
    assert waits == []


def test_somebody_elses_commits_stay(ramp: Path, hub: HubHost, repo: Repo, waits: list[float]) -> None:
    hub.fail("POST commit", first=lambda: repo.put("README.md", b"theirs"), times=2)
    assert publish(ramp) == 0
    assert repo.files()["README.md"] == b"theirs"
    assert len([commit for commit in repo.log() if len(commit.changed) > 1]) == 1
    assert waits == []


def test_commits_are_bounded_and_hold_whole_rollouts(
    ramp: Path, hub: HubHost, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MOST_FILES", 10)
    hub.page = 3
    assert publish(ramp) == 0
    *rollouts, last = repo.log()
    assert sorted(len(commit.changed) for commit in rollouts) == [9, 9, 10]
    assert all(commit.changed[-1].endswith("/manifest.json") for commit in rollouts)
    assert [path.split("/")[2] for path in last.changed] == ["manifests"]
    repo.refs["main"] = next(iter(repo.commits))
    monkeypatch.setattr(upload, "MOST_BYTES", 4000)
    assert publish(ramp / "one") == 0
    sizes = files_of(repo)
    for commit in repo.log()[4:]:
        assert len(commit.changed) == 1 or sum(sizes[path][0] for path in commit.changed) <= 4000


def test_what_the_repository_ignores_is_no_success(ramp: Path, repo: Repo, capsys: Capture) -> None:
    repo.put(".gitignore", b"*.txt\n")
    assert publish(ramp) == 1
    said = capsys.readouterr().err
    assert re.search(r"org/set did not take progress/\S+/artifacts/large\.txt: either its \.gitignore names", said)
    assert not any("manifests" in path for path in repo.files())


def test_a_rollout_that_changes_meanwhile_does_not_go(ramp: Path, hub: HubHost, repo: Repo, capsys: Capture) -> None:
    hub.fail("GET info", first=(ramp / "one" / "result.json").unlink)
    assert publish(ramp) == 1
    assert "one changed while it was being published" in capsys.readouterr().err
    assert repo.files() == {}


@pytest.mark.usefixtures("waits")
def test_no_secret_of_ours_is_shown_or_sent_but_in_its_header(
    ramp: Path, hub: HubHost, repo: Repo, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k3y-of-a-provider")
    monkeypatch.setenv("SOME_TOKEN", "0123-of-somebody")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint.replace("://", "://mia:pa55word@"))
    (ramp / "one" / "agent").mkdir()
    log = ramp / "one" / "agent" / "log.txt"
    log.write_text(f"{WRITER} k3y-of-a-provider 0123-of-somebody pa55word", "utf-8")
    assert publish(ramp) in (0, 1)  # what a login in the address does to the token is the client's
    hub.fail("POST commit", status=500, times=99)
    (ramp / "two" / "agent").mkdir()
    (ramp / "two" / "agent" / "log.txt").write_text("more", "utf-8")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.endpoint)
    assert publish(ramp) == 1
    told = capsys.readouterr()
    sent = [request.replace(f"Bearer {WRITER}", "") for request in hub.seen]
    for secret in (WRITER, "k3y-of-a-provider", "0123-of-somebody", "pa55word", "signature="):
        assert secret not in told.out + told.err
        assert not any(secret in request for request in sent if secret != "signature=")
        assert not any(secret.encode() in content for content in repo.files().values())


def test_a_name_takes_no_more_than_its_line(ramp: Path, repo: Repo, capsys: Capture) -> None:
    (ramp / "one" / "artifacts").mkdir()
    (ramp / "one" / "artifacts" / "a\n::error::b").write_text("", "utf-8")
    assert publish(ramp, "--dry-run") == 0
    told = capsys.readouterr().out.splitlines()
    assert f"file left out: {ramp}/one/artifacts/a\\x0a\\x3a:error::b: its name is no plain text" in told
    assert repo.files() == {}


def test_a_redacted_secret_is_told(ramp: Path, repo: Repo, capsys: Capture) -> None:
    (ramp / "one" / "agent").mkdir()
    (ramp / "one" / "agent" / "log.txt").write_text(f"login {KEY}\n", "utf-8")
    assert publish(ramp) == 0
    told = capsys.readouterr().out
    assert f"redacted: 1 secret in {ramp / 'one' / 'agent' / 'log.txt'}\n" in told
    assert b"login [REDACTED]\n" in repo.files().values()


KILLED = """
import sys
from pytest_benchflow import cli
from pytest_benchflow.publish import upload
upload.MOST_FILES = 10
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("route", "number"), [("PUT object", 2), ("POST commit", 1), ("POST commit", 3)])
def test_a_killed_publication_is_finished_by_the_next(
    ramp: Path, hub: HubHost, tmp_path: Path, route: str, number: int
) -> None:
    repo = hub.create("org/set")
    for word in ("one", "three"):
        (ramp / word / "artifacts").mkdir()
        (ramp / word / "artifacts" / "large.txt").write_text(word * 3000, "utf-8")
    command = [sys.executable, "-c", KILLED, "publish", str(ramp), "--repo", "org/set"]
    environment = os.environ | hub.environ | {"HF_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
    running: list[subprocess.Popen[bytes]] = []

    def kill() -> None:
        running[0].send_signal(signal.SIGKILL)
        running[0].wait(60)

    steps: list[Callable[[], None]] = [*(lambda: None for _ in range(number - 1)), kill]
    for step in steps:
        hub.fail(route, first=step)
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        running.append(process)
        assert process.wait(120) == -signal.SIGKILL
    assert not any("manifests" in path for path in repo.files())
    assert list(tmp_path.glob("pytest-benchflow-publish-*/*/benchflow-publish-*")), "copies that it left"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    changed = [path for commit in repo.log() for path in commit.changed]
    assert sorted(changed) == sorted(repo.files())
    assert len(repo.files()) == 3 * 10 + 1
    assert repo.stored_again == []
    (base,) = tmp_path.glob("pytest-benchflow-publish-*")
    assert list(base.iterdir()) == []
