"""The engine of a review: what it tells, what it refuses to read, and that nothing is laundered through it."""

from __future__ import annotations

import gc
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks._baseline import SHIPPED
from pytest_benchflow.checks._check import all_checks
from pytest_benchflow.errors import UsageError
from pytest_benchflow.records.audit import write_audit
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.report.review import checks_for, document, review_of, review_rollout, rollouts_at
from pytest_benchflow.report.review_text import review_lines, total_lines
from tests.unit.rollouts import Talk, assistant, call, edit, write_rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.report.review import Review

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def review(rundir: RunDir, *, rebuild: bool = False, expect_commit: str | None = None) -> Review:
    return review_rollout(rundir.path, checks_for(expect_commit), rebuild=rebuild)


def errors(found: Review) -> dict[str, str]:
    return {finding.check: finding.message for finding in found.report.errors}


def test_the_collector_does_not_walk_what_a_review_read(tmp_path: Path) -> None:
    rollout, checks = Rollout(write_rollout(tmp_path).path), checks_for()
    review_rollout(rollout.path, checks)
    walked: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and "exchange_log" in vars(rollout):
            walked.append(info["generation"])

    thresholds = gc.get_threshold()
    gc.set_threshold(200, *thresholds[1:])
    gc.callbacks.append(note)
    try:
        found = review_of(rollout, checks)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    assert found.healthy
    assert "exchange_log" in vars(rollout)
    assert gc.isenabled()
    assert walked == []


def test_a_healthy_rollout_in_json(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path, config_with={"source": {"commit": COMMIT, "dirty": False}})
    told = json.loads(json.dumps(review(rundir).as_json(), allow_nan=False))
    assert (told["root"], told["healthy"], told["verdict"], told["findings"]) == (str(tmp_path), True, "pass", [])
    assert {*told["ran"], *told["not_applicable"]} == set(all_checks())
    assert told["exchanges"][0] == {
        "index": 0,
        "outcome": "completed",
        "role": "policy",
        "selected": True,
        "reason": None,
        "tokens": 110,
    }
    expected: dict[str, Any] = {
        "training_ready": True,
        "training_ready_reason": None,
        "tokens": {"billed": 330, "selected": 330, "excluded": 0},
        "reward": 1.0,
        "n_tool_calls": 3,
        "responses": {"completed": 3, "with_usage": 3},
        "truncated_steps": 0,
        "acp_transport": "local-stdio",
        "timing_total_s": 60.0,
        "cost_usd": None,
        "price_source": None,
        "source_commit": COMMIT,
        "audit": None,
    }
    assert {key: told[key] for key in expected} == expected
    assert told["effort"]["asked"] is None
    assert told["task_skills_loading"] in (0, None)


def test_the_document_counts_and_names_agents_without_a_model(tmp_path: Path) -> None:
    good = write_rollout(tmp_path / "good")
    bad = write_rollout(tmp_path / "bad")
    bad.acp.unlink()
    nop = write_rollout(
        tmp_path / "nop",
        [],
        result_with={"agent": "nop", "model": "none", "proxy": None},
        config_with={"agent": "nop", "model": "none"},
    )
    reviews = [review(rundir) for rundir in (good, bad, nop)]
    told = document(reviews)
    assert told["summary"] == {"checked": 3, "healthy": 2, "unhealthy": 1, "without_model": 1}
    assert not told["healthy"]
    assert document(reviews[:1])["healthy"]
    total = next(total_lines([each.summary for each in reviews], 120))
    assert total == "3 rollouts: 2 healthy, 1 unhealthy (1 capture), 1 of an agent without a model"


def test_what_a_person_reads(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    rundir.acp.unlink()
    head, evidence, *findings = review_lines(review(rundir), 200)
    assert head.startswith(f"{tmp_path}: unhealthy (capture) · ")
    assert head.endswith("checks apply")
    assert evidence == (
        "  0/1 healthy · 330 tokens · 3 tool calls · reward not counted · 3/3 usage · 0 truncated · training_ready 1"
        " · 60.0 s"
    )
    assert findings == ["  error: acp_trajectory_readable: trajectory/acp_trajectory.jsonl is missing"]


def test_a_review_writes_nothing(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for rebuild in (False, True):
        assert review(rundir, rebuild=rebuild).healthy
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_with_rebuild_the_row_on_disk_is_not_looked_at(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    rundir.row.unlink()
    assert review(rundir, rebuild=True).healthy
    found = review(rundir)
    assert "results_row_readable" in errors(found)
    assert (found.facts["training_ready"], found.facts["training_ready_reason"]) == (False, "no_row")


def test_a_row_that_says_no_is_not_ready_whatever_the_records_allow(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    edit(rundir.row, lambda row: row["info"].update(training_ready=False, training_ready_reason="held back"))
    found = review(rundir)
    assert "training_ready_is_true_to_the_records" in errors(found)
    assert (found.facts["training_ready"], found.facts["training_ready_reason"]) == (False, "held back")


def to_outside(rundir: RunDir) -> None:
    rundir.llm.unlink()
    rundir.llm.symlink_to("/etc/hostname")


def to_itself(rundir: RunDir) -> None:
    rundir.config.unlink()
    rundir.config.symlink_to("config.json")


def pipe(rundir: RunDir) -> None:
    rundir.row.unlink()
    os.mkfifo(rundir.row)


@pytest.mark.parametrize("strange", [to_outside, to_itself, pipe], ids=["link-out", "link-to-itself", "pipe"])
def test_where_something_must_not_be_opened_nothing_is(tmp_path: Path, strange: Callable[[RunDir], None]) -> None:
    rundir = write_rollout(tmp_path)
    strange(rundir)
    found = review(rundir)
    assert list(errors(found)) == ["files_are_plain"]
    assert found.report.ran == ["files_are_plain"]
    assert set(found.report.not_applicable.values()) == {"nothing was read"}
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert (told["training_ready"], told["tokens"]["billed"], told["exchanges"]) == (False, None, [])


@pytest.mark.parametrize("part", ["result", "config", "row", "llm", "acp"])
@pytest.mark.parametrize(
    "content",
    [b"", b"[1]\n", b"null\n", b"\x00\xff\n", b'{"a":' * 5000 + b"1", b"{}\n" * 3],
    ids=["empty", "list", "null", "bytes", "deep", "objects"],
)
def test_no_record_ends_a_review(tmp_path: Path, part: str, content: bytes) -> None:
    rundir = write_rollout(tmp_path)
    getattr(rundir, part).write_bytes(content)
    found = review(rundir)
    assert not found.healthy
    json.dumps(document([found]), allow_nan=False)
    assert not [message for message in errors(found).values() if "crashed" in message]


def test_a_directory_in_a_files_place_is_a_finding(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    rundir.result.unlink()
    rundir.result.mkdir()
    assert "cannot be read" in errors(review(rundir))["result_readable"]


@pytest.mark.parametrize("category", ["infra", "verifier"])
def test_a_fault_of_the_run_stands_when_the_records_no_longer_say_why(tmp_path: Path, category: str) -> None:
    rundir = write_rollout(tmp_path, result_with={"verdict": "unhealthy", "verdict_category": category})
    found = review(rundir, rebuild=True)
    assert (found.verdict, found.category) == ("unhealthy", category)
    assert "nothing in the records says why" in errors(found)["verdict_agrees"]


def test_a_mended_row_makes_a_rollout_healthy_again(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path, result_with={"verdict": "unhealthy", "verdict_category": "training"})
    assert review(rundir).healthy


def test_a_timeout_stays_one_with_a_full_reward(tmp_path: Path) -> None:
    facts = {"error": "Agent timed out after 900s", "error_category": "timeout", "idle_before_timeout_s": 3.0}
    assert review(write_rollout(tmp_path, result_with=facts)).verdict == "normal_timeout"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"commit": COMMIT, "dirty": False}, None),
        ({"commit": COMMIT.upper(), "dirty": False}, None),
        ({"commit": COMMIT, "dirty": True}, "had changes"),
        ({"commit": "f" * 40, "dirty": False}, "names the source commit ffff"),
        ({"commit": None}, "names no source commit"),
        (None, "names no source commit"),
    ],
    ids=["same", "same-in-capitals", "dirty", "another", "null", "absent"],
)
def test_the_expected_commit(tmp_path: Path, source: Any, said: str | None) -> None:
    rundir = write_rollout(tmp_path, config_with={"source": source})
    found = review(rundir, expect_commit=COMMIT[:9])
    assert found.healthy == (said is None)
    assert said is None or said in errors(found)["source_is_the_expected_commit"]


@pytest.mark.parametrize("commit", ["main", "", "01234", "0123456\n"], ids=["branch", "empty", "short", "newline"])
def test_what_is_no_commit_is_refused(commit: str) -> None:
    with pytest.raises(UsageError, match="at least 7 hexadecimal digits"):
        checks_for(commit)


def test_a_review_that_lost_a_check_is_unhealthy(tmp_path: Path) -> None:
    checks = checks_for()
    del checks["tokens_add_up"]
    found = review_rollout(write_rollout(tmp_path).path, checks)
    assert errors(found) == {"every_check_ran": "shipped checks did not run: tokens_add_up"}


def test_effort_is_counted_over_the_policys_requests(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."))
    for record, effort in zip(talk.records, ("max", "high"), strict=True):
        record["request"]["body"]["reasoning_effort"] = effort
    rundir = write_rollout(tmp_path, talk.records, config_with={"reasoning_effort": "max"})
    found = review(rundir)
    assert found.facts["effort"] == {
        "asked": "max",
        "requests": 2,
        "requests_matching": 1,
        "responses_echoing": 0,
    }
    assert "effort 1/2" in " ".join(review_lines(found, 200))


def test_health_and_audit_are_two_things(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    write_audit(rundir, verdict="not-publishable", by="Mia", note="\x1b[31mleaks the\nanswer")
    found = review(rundir)
    assert found.healthy
    assert found.as_json()["audit"]["verdict"] == "not-publishable"
    assert list(review_lines(found, 200))[-1].endswith(r": \x1b[31mleaks the answer")
    rundir.acp.write_bytes(rundir.acp.read_bytes() + b'{"type": "agent_message", "text": "more"}\n')
    voided = review(rundir)
    assert voided.as_json()["audit"]["void"] == "the raw trace has changed since"
    assert list(review_lines(voided, 200))[-1].startswith("  audit: void, as the raw trace has changed since (not-pub")


def test_paths_are_reviewed_once_and_must_hold_something(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path / "jobs" / "r1")
    assert rollouts_at([tmp_path, rundir.path, tmp_path / "jobs"]) == [rundir.path]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no rollout"):
        rollouts_at([rundir.path, tmp_path / "empty"])
    with pytest.raises(UsageError, match="does not exist"):
        rollouts_at([tmp_path / "nothing"])
    with pytest.raises(UsageError, match="is no directory"):
        rollouts_at([rundir.result])


def test_a_rollout_that_its_job_misses_is_unhealthy(tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "r1")
    plan = {"versions": {"pytest_benchflow": "0.1.0"}, "matrix": [{"rollout": "r1"}, {"rollout": "r2"}]}
    (tmp_path / "job" / "job.json").write_text(json.dumps(plan), "utf-8")
    roots = rollouts_at([tmp_path], planned=True)
    assert [root.name for root in roots] == ["r1", "r2"]
    assert [root.name for root in rollouts_at([tmp_path])] == ["r1"]
    found = review_rollout(roots[1], checks_for())
    assert errors(found) == {"files_are_plain": "the job planned this rollout, and nothing of it is here"}


def test_the_list_of_shipped_checks_is_whole() -> None:
    assert set(SHIPPED) == set(all_checks()), "run python docs/make_tables.py and commit checks/_baseline.py"
