"""A session removes what dead ones of its owner left, and fails by an item of its own for what it leaves itself."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from tests.plugin.bench import outcomes
from tests.plugin.yard import CONFTEST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench

ASKED = ("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-sandbox=yard", "--junitxml=junit.xml")


@pytest.fixture
def yard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHFLOW_YARD_OWNER", "ada")
    monkeypatch.setenv("TMPDIR", str(bench.path / "tmp"))
    (bench.path / "tmp").mkdir()
    bench.task()
    bench.pytester.makeconftest(CONFTEST)
    (bench.path / "yard").mkdir()
    return bench.path / "yard"


def cases(bench: Bench) -> dict[str, str | None]:
    """Return the names in JUnit's file, each with the message of its failure."""
    found = ET.parse(bench.path / "junit.xml").iter("testcase")  # noqa: S314 - pytest's own
    return {
        f"{case.get('classname')}.{case.get('name')}": None
        if (failure := case.find("failure")) is None
        else failure.text
        for case in found
    }


def events(bench: Bench) -> list[str]:
    (ledger,) = bench.path.glob("jobs/*/sandboxes.jsonl")
    return [json.loads(line)["event"] for line in ledger.read_text().splitlines()]


def test_a_session_that_leaves_nothing_says_nothing(bench: Bench, yard: Path) -> None:
    done = bench.run(*ASKED)
    assert (done.ret, outcomes(done)) == (0, {"solved": 1}), done.outlines
    assert events(bench) == ["create", "created", "deleted"]
    assert not list(yard.iterdir())
    assert len(cases(bench)) == 1
    done.stdout.no_fnmatch_line("*yard:*")


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_what_is_left_fails_the_session_by_an_item_that_names_it(bench: Bench, yard: Path, workers: str) -> None:
    (yard / "refuses").touch()
    done = bench.run(*ASKED, "-n", workers)
    (mark,) = yard.glob("*.json")
    assert done.ret == 1
    assert outcomes(done) == {"failed": 2}  # the rollout, whose sandbox did not stop, and the session's own item
    text = cases(bench)["benchflow.sandboxes_are_gone"]
    assert text is not None
    assert f"{mark.stem} of hello__oracle__none__default__1 (yard at {yard})" in text
    done.stdout.fnmatch_lines(["*sandboxes are gone*", "1 not removed by this session*"])
    assert events(bench) == ["create", "created"]

    (yard / "refuses").unlink()
    assert bench.run(*ASKED, "--benchflow-job-name=next").ret == 0
    assert not list(yard.iterdir())
    ledger = next(path for path in bench.path.glob("jobs/*/sandboxes.jsonl") if path.parent.name != "next")
    assert json.loads(ledger.read_text().splitlines()[-1])["event"] == "deleted"


def test_what_a_sandbox_says_to_have_removed_is_looked_for_all_the_same(bench: Bench, yard: Path) -> None:
    (yard / "forgets").touch()
    assert bench.run(*ASKED).ret == 0
    assert not list(yard.glob("*.json"))


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_backend_that_does_not_answer_at_the_end_fails_the_session(bench: Bench, yard: Path, workers: str) -> None:
    (yard / "silent").touch()
    done = bench.run(*ASKED, "-n", workers)
    assert (done.ret, outcomes(done)) == (1, {"solved": 1, "failed": 1}), done.outlines
    text = cases(bench)["benchflow.sandboxes_are_gone"]
    assert text is not None
    assert "what yard still has of this session is not known: the yard does not answer" in text
    done.stdout.fnmatch_lines(["*yard: it is not known what earlier sessions left: the yard does not answer"])
    assert events(bench) == ["create", "created", "deleted"]


def test_what_was_never_made_leaves_a_last_line(bench: Bench, yard: Path) -> None:
    (yard / "breaks").touch()
    done = bench.run(*ASKED)
    assert done.ret == 1, done.outlines
    assert events(bench) == ["create", "deleted"]
    assert [path.name for path in yard.iterdir()] == ["breaks"]


def test_a_start_removes_what_is_exactly_ours_and_old(bench: Bench, yard: Path) -> None:
    old, young = time.time() - 86400, time.time() - 60
    for name, labels, created in (
        ("ours", {"benchflow.managed": "1:ada", "benchflow.owner": "ada"}, old),
        ("young", {"benchflow.managed": "1:ada", "benchflow.owner": "ada"}, young),
        ("unknown", {"benchflow.managed": "1:ada", "benchflow.owner": "ada"}, None),
        ("bobs", {"benchflow.managed": "1:bob", "benchflow.owner": "bob"}, old),
        ("orphan", {"benchflow.managed": "1"}, old),
    ):
        (yard / f"{name}.json").write_text(json.dumps({"labels": labels, "created": created}))
    done = bench.run(*ASKED, "-n", "2")
    assert done.ret == 0, done.outlines
    assert {path.stem for path in yard.iterdir()} == {"young", "unknown", "bobs", "orphan"}
    done.stdout.fnmatch_lines(
        [
            "benchflow: yard: removed ours.json (a mark): 1 d old, left by an earlier session",
            "benchflow: yard: 1 with labels that fit nobody; `pytest-benchflow reap --dry-run --sandbox yard` *",
        ]
    )
