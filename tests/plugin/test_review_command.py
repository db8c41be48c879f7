"""`pytest-benchflow review`, `rebuild` and `audit`: what they print, what they write, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli
from pytest_benchflow.rollout.place import held
from tests.unit.rollouts import edit, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def good(tmp_path: Path) -> RunDir:
    return write_rollout(tmp_path / "jobs" / "good")


@pytest.fixture
def lost(tmp_path: Path) -> RunDir:
    rundir = write_rollout(tmp_path / "jobs" / "lost")
    rundir.acp.unlink()
    return rundir


def test_a_review_of_a_job_for_people(good: RunDir, lost: RunDir, capsys: Capture) -> None:
    assert cli.main(["review", str(good.path.parent)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{good.path}: solved · ")
    assert lines[1].startswith("  1/1 healthy · 330 tokens · 3 tool calls · reward present · 3/3 usage · 0 truncated")
    assert lines[2].startswith(f"{lost.path}: unhealthy (capture) · ")
    assert lines[4] == "  error: acp_trajectory_readable: trajectory/acp_trajectory.jsonl is missing"
    assert lines[-2:] == [
        "2 rollouts: 1 healthy, 1 unhealthy (1 capture)",
        "1/2 healthy · 660 tokens · 6 tool calls · 1/2 rewards present · 6/6 usage · 0 truncated · training_ready 2"
        " · 120.0 s",
    ]


def test_a_review_in_json(good: RunDir, lost: RunDir, capsys: Capture) -> None:
    assert cli.main(["review", "--json", str(lost.path), str(good.path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["summary"] == {"checked": 2, "healthy": 1, "unhealthy": 1, "without_model": 0}
    assert [each["root"] for each in told["rollouts"]] == [str(lost.path), str(good.path)]
    assert cli.main(["review", "--json", str(good.path)]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"] is True


def test_json_holds_nothing_that_a_terminal_obeys(good: RunDir, capsys: Capture) -> None:
    edit(good.config, lambda config: config.update(acp_transport="\x1b[2J\u202e"))
    cli.main(["review", "--json", str(good.path)])
    out = capsys.readouterr().out
    assert out.isascii()
    assert out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("review nothing", "does not exist"),
        ("review empty", "holds no rollout"),
        ("review jobs/good empty", "holds no rollout"),
        ("review jobs/good/result.json", "is no directory"),
        ("review jobs/good --expect-commit main", "at least 7 hexadecimal digits"),
        ("rebuild empty", "holds no rollout"),
        ("audit empty --verdict=publishable --by=Mia", "is no rollout"),
        ("audit jobs --verdict=publishable --by=Mia", "is no rollout"),
        ("audit jobs/good --verdict=publishable --by=", "--by is empty"),
    ],
    ids=["missing", "none", "one-of-two", "file", "branch", "rebuild", "audit-none", "audit-job", "audit-nobody"],
)
def test_wrong_use_ends_with_2_and_a_sentence(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: str, says: str
) -> None:
    write_rollout(tmp_path / "jobs" / "good")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) == 2
    done = capsys.readouterr()
    assert (done.out, says in done.err, done.err.count("\n")) == ("", True, 1)


def test_rebuild_says_what_became_of_each_row(good: RunDir, lost: RunDir, capsys: Capture) -> None:
    row = good.row.read_bytes()
    good.row.write_text("torn", "utf-8")
    edit(lost.result, lambda result: result.update(error="crashed", error_category="agent"))
    assert cli.main(["rebuild", str(good.path.parent)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{good.path}: 3 steps, ready to train",
        f"{lost.path}: 3 steps, not ready to train: agent_error",
    ]
    assert good.row.read_bytes() == row


def test_rebuild_goes_on_after_a_rollout_that_it_cannot_rebuild(good: RunDir, lost: RunDir, capsys: Capture) -> None:
    good.llm.unlink()
    assert cli.main(["rebuild", str(good.path.parent)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{good.path}: not rebuilt: ")
    assert second == f"{lost.path}: 3 steps, ready to train"


def test_rebuild_writes_no_row_beside_a_rollout_that_still_does(good: RunDir, lost: RunDir, capsys: Capture) -> None:
    good.row.write_text("torn", "utf-8")
    with held(good, wait=False):
        assert cli.main(["rebuild", str(good.path.parent)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{good.path}: not rebuilt: ")
    assert "is being written" in first
    assert "wait for it" in first
    assert second == f"{lost.path}: 3 steps, ready to train"
    assert good.row.read_text("utf-8") == "torn"
    assert not lost.lock.exists()


def test_an_audit_is_shown_beside_the_findings(good: RunDir, capsys: Capture) -> None:
    assert cli.main(["audit", str(good.path), "--verdict=quarantine", "--by=Mia", "--note=too\x07easy"]) == 0
    assert capsys.readouterr().out.startswith(f"{good.audit}: quarantine, by Mia, ")
    assert cli.main(["review", str(good.path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(r": too\x07easy")


def test_an_audit_of_what_must_not_be_read_is_refused(good: RunDir, capsys: Capture) -> None:
    good.acp.unlink()
    good.acp.symlink_to("/etc/hostname")
    assert cli.main(["audit", str(good.path), "--verdict=publishable", "--by=Mia"]) == 1
    assert "leads out of the rollout" in capsys.readouterr().err
    assert not good.audit.exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_must_not_be_read_is_not_shown(good: RunDir, capsys: Capture, kind: str) -> None:
    good.result.unlink()
    good.result.symlink_to("/etc/hostname") if kind == "link" else os.mkfifo(good.result)
    assert cli.main(["show", str(good.path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"not read, as result.json is a {kind}" in told.err


PLUGIN = """
from pytest_benchflow import check

@check()
def check_is_short(rollout):
    assert len(rollout.exchanges) < 2, f"{len(rollout.exchanges)} exchanges are many"

def pytest_benchflow_checks():
    return {"is_short": check_is_short}
"""


def review_with_plugin(rundir: RunDir, site: Path, *, requires: str, program: str) -> subprocess.CompletedProcess[str]:
    """Review with a package installed that offers a pytest plugin."""
    info = site / "house_rules-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "house_rules.py").write_text(program, "utf-8")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\nRequires-Dist: {requires}\n"
    )
    (info / "entry_points.txt").write_text("[pytest11]\nhouse_rules = house_rules\n", "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest_benchflow.cli", "review", str(rundir.path)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=rundir.path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_checks_of_installed_plugins_count_and_those_of_a_conftest_do_not(good: RunDir, tmp_path: Path) -> None:
    (good.path / "conftest.py").write_text("raise SystemExit('imported')\n", "utf-8")
    done = review_with_plugin(good, tmp_path / "site", requires="pytest_benchflow>=0.1", program=PLUGIN)
    assert (done.returncode, done.stderr) == (1, "")
    assert "  error: is_short: 3 exchanges are many" in done.stdout.splitlines()


def test_a_plugin_that_does_not_build_on_this_one_is_not_imported(good: RunDir, tmp_path: Path) -> None:
    program = "raise SystemExit('imported')"
    done = review_with_plugin(good, tmp_path / "site", requires="pytest-benchflow-other", program=program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_plugin_that_cannot_be_used_is_named(good: RunDir, tmp_path: Path) -> None:
    done = review_with_plugin(
        good, tmp_path / "site", requires="pytest-benchflow", program="import nothing_of_that_name"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "pytest-benchflow: error: the installed pytest plugin house_rules cannot be used: Mod"
    )
