"""Two jobs side by side: what is paired, what is counted, and what is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.cli import main
from pytest_benchflow.records.job import write_job_files
from pytest_benchflow.report.compare import compare, read_arms
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from pathlib import Path


def add(job: Path, task: str, verdict: str, reward: float | None, trial: int = 1, **told: Any) -> None:
    """Write a rollout of one task; an unhealthy one keeps what its verifier wrote."""
    model, agent = told.pop("model", "openai/gpt-5"), told.pop("agent", "coder")
    usage = {"cost_usd": told.pop("usd", 0.25), "total_tokens": 1000}
    config = {"model": model, "agent": agent, "task_name": task, "skill_mode": told.pop("skills", "no-skill")}
    result = {"task_name": task, "verdict": verdict, "rewards": {"reward": reward}, "agent_result": usage, **told}
    write_rollout(job / f"{task}__{agent}__{config['skill_mode']}__{trial}", result_with=result, config_with=config)


@pytest.fixture
def jobs(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "a", tmp_path / "b"
    for task, first, second in (("easy", 1.0, 1.0), ("gained", 0.0, 1.0), ("lost", 1.0, 0.0), ("hard", 0.0, 0.5)):
        add(before, task, "pass" if first == 1 else "fail", first)
        add(after, task, "pass" if second == 1 else "fail", second)
    return before, after


def test_tasks_are_told_that_only_one_job_solved(jobs: tuple[Path, Path]) -> None:
    (found,) = compare(*map(read_arms, jobs))
    assert (found.solved, found.regressed, len(found.tasks)) == (["gained"], ["lost"], 4)
    assert found.change.mean == pytest.approx(0.125)


def test_an_unhealthy_rollout_is_counted_and_has_no_reward(jobs: tuple[Path, Path]) -> None:
    before, after = jobs
    add(before, "dead", "pass", 1.0)
    add(after, "dead", "unhealthy", 0.0, verdict_category="verifier")
    (found,) = compare(*map(read_arms, jobs))
    assert "dead" not in [*found.tasks, *found.regressed]
    assert found.change.tasks == 4
    assert found.as_dict()["after"]["unhealthy"] == 1
    assert found.as_dict()["after"]["planned"] == 5


def test_a_task_counts_as_solved_when_most_of_its_trials_solved_it(tmp_path: Path) -> None:
    for trial, verdict in enumerate(("pass", "fail", "pass"), 1):
        add(tmp_path / "a", "flaky", verdict, float(verdict == "pass"), trial)
        add(tmp_path / "b", "flaky", "fail" if trial < 3 else verdict, 0.0 if trial < 3 else 1.0, trial)
    (found,) = compare(read_arms(tmp_path / "a"), read_arms(tmp_path / "b"))
    assert found.regressed == ["flaky"]


def test_arms_of_one_name_are_compared_and_others_are_named(
    jobs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    add(jobs[1], "easy", "pass", 1.0, agent="other")
    assert main(["compare", *map(str, jobs)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("coder · openai/gpt-5 · without\n")
    assert "not compared, for only one job has it: other · openai/gpt-5 · without\n" in said
    assert "solved now: 1\n    gained\n  regressed: 1\n    lost\n" in said


def test_a_cost_that_is_not_known_is_no_zero(jobs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    add(jobs[1], "free", "pass", 1.0, usd=None)
    assert main(["compare", *map(str, jobs), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["before"]["cost_usd"] == {"total": 1.0, "priced_subtotal": 1.0, "unpriced": 0}
    assert found["after"]["cost_usd"] == {"total": None, "priced_subtotal": 1.0, "unpriced": 1}


def test_what_cannot_be_compared_is_wrong_use(jobs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(jobs[0]), str(jobs[0].parent)]) == 2
    assert "is no job with rollouts" in capsys.readouterr().err
    for agent in ("one", "two"):
        add(jobs[0].parent / "c", "easy", "pass", 1.0, agent=agent)
    assert main(["compare", str(jobs[0]), str(jobs[0].parent / "c")]) == 2
    assert "nothing is the same in both" in capsys.readouterr().err


def test_a_jobs_summary_holds_its_arms_with_all_that_was_planned(jobs: tuple[Path, Path]) -> None:
    job = jobs[1]
    add(job, "gained", "fail", 0.0, skills="with-skill")
    cell = {"rollout": "never", "task": "never", "agent": "coder", "model": "openai/gpt-5", "skills": "without"}
    (job / "job.json").write_text(
        json.dumps({"job_name": "b", "matrix": [cell], "versions": {"pytest_benchflow": "1"}})
    )
    summary = write_job_files(job)
    with_skills, without = summary["arms"]
    assert (with_skills["skills"], without["skills"]) == ("with", "without")
    assert without["solved"] == {"count": 2, "of": 5, "unhealthy": 0, "missing": 1, "skipped": 0}
    assert without["pass_at"] == {"1": {"chance": 0.5, "tasks": 4, "of": 5}}
    assert summary["skill_lift"][0]["lift"]["mean"] == -1.0


def test_what_is_not_compared_is_named_with_its_reason(
    jobs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = jobs
    add(before, "dead", "pass", 1.0)
    add(after, "dead", "unhealthy", 0.0, verdict_category="verifier")
    add(after, "new", "pass", 1.0)
    assert main(["compare", str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert " over 4 of 6 tasks\n" in said
    left_out = {"dead": "no healthy rollout after", "new": "not in the job before"}
    assert said.endswith("  not compared: 2\n" + "".join(f"    {task}: {why}\n" for task, why in left_out.items()))
    (found,) = compare(read_arms(before), read_arms(after))
    assert found.as_dict()["left_out"] == left_out


def test_where_nothing_is_healthy_in_both_nothing_is_known_of_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path / "a", "dead", "unhealthy", 1.0)
    add(tmp_path / "b", "dead", "unhealthy", 1.0)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert "nothing is known of a change: no task has healthy rollouts in both\n" in said
    assert "dead: no healthy rollout before and after\n" in said


def test_a_plan_that_cannot_be_read_hides_no_missing_rollout(
    jobs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (jobs[1] / "job.json").write_text("{")
    assert main(["compare", *map(str, jobs)]) == 1
    said = capsys.readouterr()
    assert (said.out, "job.json: not JSON" in said.err) == ("", True)


def test_a_task_without_a_pair_is_left_out_of_what_skills_add_and_named(jobs: tuple[Path, Path]) -> None:
    job = jobs[0]
    add(job, "easy", "pass", 1.0, skills="with-skill")
    add(job, "gained", "pass", 1.0, skills="with-skill")
    add(job, "lost", "unhealthy", 1.0, skills="with-skill")
    (lift,) = write_job_files(job)["skill_lift"]
    assert (lift["lift"]["mean"], lift["lift"]["tasks"], lift["lift"]["of"]) == (0.5, 2, 3)
    assert lift["left_out"] == ["lost"]
