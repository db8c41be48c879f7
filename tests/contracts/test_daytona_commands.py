"""The commands that look after what is at Daytona: one removes exactly what is ours, the other tries the service."""

from __future__ import annotations

import datetime
import random
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.daytonahost import DaytonaHost

OPERATORS = ("ann", "bob", "bob-2", "eve")
HOUR = datetime.timedelta(hours=1)


@pytest.fixture(autouse=True)
def at_daytona(daytona: DaytonaHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paramiko")
    for name, value in daytona.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BENCHFLOW_DAYTONA_OWNER", "bob")
    monkeypatch.setattr("pytest_benchflow.sandboxes._daytona.api._PAUSE_SEC", 0.05)
    monkeypatch.chdir(tmp_path)


def test_of_a_thousand_sandboxes_of_four_operators_exactly_ours_are_removed(
    daytona: DaytonaHost, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(7)  # noqa: S311  # invented data
    for _ in range(996):
        owner = chance.choice(OPERATORS)
        marks = {"benchflow.managed": chance.choice(("1", f"1:{owner}")), "benchflow.owner": owner}
        dated = chance.random() > 0.1
        idle = chance.choice((datetime.timedelta(minutes=1), HOUR))
        daytona.add(marks, age=HOUR * chance.randint(0, 5), idle=idle, dated=dated)
    orphans = [
        *daytona.add({"benchflow.managed": "1"}, age=5 * HOUR),
        *daytona.add({"benchflow.managed": "1:bob"}, age=5 * HOUR),
        *daytona.add({"benchflow.managed": "1:eve", "benchflow.owner": "bob"}, age=5 * HOUR),
    ]
    daytona.add({"purpose": "something else"}, age=5 * HOUR)
    now = daytona.plane.now()
    doomed = {
        name
        for name, box in daytona.sandboxes.items()
        if box.labels.get("benchflow.owner") == "bob"
        and name not in orphans
        and box.dated
        and now - box.created > 2 * HOUR
        and now - (box.active or now) > HOUR / 4
    }
    before = set(daytona.sandboxes)
    assert len(before) == 1000
    assert 50 < len(doomed) < 300
    daytona.plane.page_size = 100
    daytona.delay("GET /sandbox", 0.02)
    # One of the pages fails once, and one of the deletions twice.
    daytona.fail("GET /sandbox", status=502)
    daytona.fail("DELETE /sandbox/*", status=500, times=2)
    assert main(["reap", "--sandbox", "daytona", "--dry-run"]) == 0
    assert set(daytona.sandboxes) == before
    assert daytona.requests["DELETE /sandbox/{box}"] == 0
    capsys.readouterr()
    assert main(["reap", "--sandbox", "daytona"]) == 0
    assert before - set(daytona.sandboxes) == doomed
    told = capsys.readouterr()
    for name in orphans:
        assert name in told.out + told.err
    assert main(["reap", "--sandbox", "daytona"]) == 0
    assert before - set(daytona.sandboxes) == doomed


def test_the_probe_counts_the_sessions_of_a_hundred_commands(
    daytona: DaytonaHost, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--probe", "daytona"]) == 0
    told = capsys.readouterr().out
    assert "100 commands" in told
    assert "sessions before: 0" in told
    assert "sessions after: 0" in told
    assert daytona.sandboxes == {}
    assert daytona.requests["POST /sandbox"] == 1
    assert daytona.requests["DELETE /process/session/{session}"] == daytona.requests["POST /process/session"] >= 100


def test_a_probe_that_cannot_make_a_sandbox_says_why(daytona: DaytonaHost, capsys: pytest.CaptureFixture[str]) -> None:
    daytona.refuse_quota()
    assert main(["doctor", "--probe", "daytona"]) == 1
    told = capsys.readouterr().out
    assert "Total CPU limit exceeded" in told
    assert "Traceback" not in told
    assert daytona.key not in told
