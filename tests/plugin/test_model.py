"""--benchflow-model: which models answer, and what is refused before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench


def test_models_multiply_the_matrix_and_make_safe_ids(bench: Bench) -> None:
    bench.task()
    ids = bench.ids("tasks", "--benchflow-model=replay", "--benchflow-model=a/b@http://127.0.0.1:9/v1")
    assert [line.partition("::")[2] for line in ids if "rollout[" in line] == [
        "rollout[baseline-replay-default-1]",
        "rollout[baseline-a-b-http-127.0.0.1-9-v1-default-1]",
    ]


def test_an_agent_without_a_model_gets_one_cell(bench: Bench) -> None:
    bench.task()
    ids = bench.ids("tasks", "--benchflow-agent=nop", "--benchflow-model=replay", "--benchflow-model=a/b@http://h/v1")
    assert len([line for line in ids if "rollout[" in line]) == 1


def test_a_model_alone_asks_for_the_listed_tasks(bench: Bench) -> None:
    bench.task()
    assert any("rollout[baseline-replay" in line for line in bench.ids("--benchflow-model=replay"))


@pytest.mark.parametrize("model", ["gpt-5", "nowhere/gpt-5"], ids=["no-provider", "unknown-provider"])
def test_a_name_of_no_known_form_is_refused(bench: Bench, model: str) -> None:
    bench.task()
    bench.refused("tasks", f"--benchflow-model={model}", says="is of no known form; it takes replay, openai/<model>")


def test_a_missing_key_is_named_before_anything_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    bench.task()
    bench.ini("benchflow_model = openai/gpt-5-mini")
    bench.refused("tasks", says="needs OPENAI_API_KEY, which is not set")


def test_agents_that_call_no_model_need_no_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    bench.task()
    assert bench.ids("tasks", "--benchflow-model=openai/gpt-5-mini", "--benchflow-agent=nop")


def test_a_run_in_which_nothing_is_recorded_fails_and_says_so(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks")
    assert done.ret == 1
    assert set(done.parseoutcomes()) == {"skipped"}
    text = done.stdout.str()
    assert "every one was skipped" in text
    assert text.count("--benchflow-model=provider/name") == 1
    assert "tasks/hello/task.toml:1" in bench.run("tasks", "-rs", "-m", "rollout").stdout.str()


def test_a_run_in_which_nothing_can_run_names_five_reasons(bench: Bench) -> None:
    for number in range(7):
        task = bench.task(f"task-{number}")
        bench.write(task, {"environment/Dockerfile": f"FROM example.org/tool-{number}:1\nWORKDIR /app\n"})
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop", "-n", "2")
    assert done.ret == 1
    reasons = done.outlines[next(n for n, line in enumerate(done.outlines) if "every one was skipped" in line) + 1 :]
    assert all(line.startswith("  ") and "example.org/tool-" in line for line in reasons[:5])
    assert reasons[5] == "  and 2 other reasons, which pytest -rs shows"


def test_skips_beside_a_rollout_that_ran_do_not_fail(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "-n", "2", "--benchflow-agent=baseline", "--benchflow-agent=nop")
    assert done.ret == 0
    assert {name: count for name, count in done.parseoutcomes().items() if name in ("skipped", "unsolved")} == {
        "skipped": 1,
        "unsolved": 1,
    }


@pytest.mark.parametrize("given", ["option", "ini"])
def test_models_whose_rollouts_would_share_a_name_are_refused(bench: Bench, given: str) -> None:
    bench.task()
    models = ("openai/gpt:5", "openai/gpt@5")
    says = "has 'openai/gpt:5' and 'openai/gpt@5': their rollouts would share the name 'baseline-openai-gpt-5'"
    if given == "ini":
        bench.ini(f"benchflow_model = {' '.join(models)}")
        bench.refused("tasks", says=f"the ini value benchflow_model {says}")
    else:
        options = [f"--benchflow-model={model}" for model in models]
        bench.refused("tasks", *options, says=f"--benchflow-model {says}")
        # Agents that call no model make no rollouts of them.
        assert len(bench.ids("tasks", "-m", "rollout", "--benchflow-agent=nop", *options)) == 1


def test_agents_whose_rollouts_would_share_a_name_are_refused(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(
        """
        from pytest_benchflow.agents.oracle import agent


        def pytest_benchflow_agents():
            return {"my agent": agent, "my:agent": agent}
        """
    )
    agents = ("--benchflow-agent=my agent", "--benchflow-agent=my:agent")
    bench.refused("tasks", *agents, says="--benchflow-agent has 'my agent' and 'my:agent': ")
