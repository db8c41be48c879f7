"""--benchflow-agent: which agents run, and what happens without a path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import SOLVED, UNSOLVED, outcomes

if TYPE_CHECKING:
    from tests.plugin.bench import Bench


def test_each_agent_gets_its_own_item(bench: Bench) -> None:
    bench.task()
    rollouts = [
        line for line in bench.ids("tasks", "--benchflow-agent=oracle", "--benchflow-agent=nop") if "rollout[" in line
    ]
    assert rollouts == [f"tasks/hello/task.toml::{SOLVED}", f"tasks/hello/task.toml::{UNSOLVED}"]


def test_an_alias_is_the_agent_it_stands_for(bench: Bench) -> None:
    bench.task()
    rollouts = [line for line in bench.ids("tasks", "--benchflow-agent=oh") if "rollout[" in line]
    assert rollouts == ["tasks/hello/task.toml::rollout[openhands-replay-default-1]"]


def test_a_version_of_an_agent_is_chosen_behind_an_at(bench: Bench) -> None:
    bench.task()
    asked = ("--benchflow-agent=openhands", "--benchflow-agent=oh@1.28.1")
    rollouts = [line.partition("::")[2] for line in bench.ids("tasks", *asked) if "rollout[" in line]
    assert rollouts == ["rollout[openhands-replay-default-1]", "rollout[openhands-1.28.1-replay-default-1]"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("oh@9", "openhands has no version '9'; it comes in: 1.16.0, 1.28.1"),
        ("oracle@2", "oracle comes in one version only; leave out @2"),
        ("orcle@2", "it takes one of: baseline, "),
    ],
)
def test_a_version_that_is_none_is_refused_with_those_that_are(bench: Bench, name: str, says: str) -> None:
    bench.task()
    bench.refused("tasks", f"--benchflow-agent={name}", says=says)


def test_the_default_is_baseline(bench: Bench) -> None:
    bench.task()
    assert "tasks/hello/task.toml::rollout[baseline-replay-default-1]" in bench.ids("tasks")


def test_the_ini_value_names_agents(bench: Bench) -> None:
    bench.task()
    bench.ini("benchflow_agent = nop oracle")
    ids = bench.ids("tasks")
    assert [UNSOLVED in line or SOLVED in line for line in ids if "rollout[" in line] == [True, True]


def test_the_command_line_replaces_the_ini_value(bench: Bench) -> None:
    bench.task()
    bench.ini("benchflow_agent = nop")
    assert f"tasks/hello/task.toml::{UNSOLVED}" not in bench.ids("tasks", "--benchflow-agent=oracle")


def test_an_unknown_agent_is_refused_with_those_that_exist(bench: Bench) -> None:
    bench.task()
    bench.refused("tasks", "--benchflow-agent=orcle", says="--benchflow-agent is 'orcle'; it takes one of: baseline, ")


def test_an_unknown_agent_in_the_ini_file_is_refused(bench: Bench) -> None:
    bench.task()
    bench.ini("benchflow_agent = orcle")
    bench.refused("tasks", says="'orcle'; it takes one of: baseline, ")


def test_an_unknown_agent_in_the_ini_file_leaves_other_sessions_alone(bench: Bench) -> None:
    bench.ini("benchflow_agent = orcle")
    bench.pytester.makepyfile("def test_pass(): pass")
    bench.look().assert_outcomes(passed=1)


def test_without_a_path_the_default_directory_is_searched(bench: Bench) -> None:
    bench.task()
    bench.task("elsewhere", under="other")
    ids = bench.ids("--benchflow-agent=oracle")
    assert f"tasks/hello/task.toml::{SOLVED}" in ids
    assert not [line for line in ids if line.startswith("other/")]


def test_without_a_path_the_ini_value_names_the_directories(bench: Bench) -> None:
    bench.task("one", under="first")
    bench.task("two", under="second")
    bench.ini("benchflow_tasks = first second")
    ids = bench.ids("--benchflow-agent=oracle")
    assert {line.partition("/")[0] for line in ids} == {"first", "second"}


def test_without_a_path_the_root_directory_counts_and_not_the_current_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.task()
    bench.ini()
    (bench.path / "docs").mkdir()
    monkeypatch.chdir(bench.path / "docs")
    assert any("hello" in line for line in bench.ids("--benchflow-agent=oracle"))


def test_a_missing_task_directory_is_refused_naming_the_ini_value(bench: Bench) -> None:
    bench.refused("--benchflow-agent=oracle", says="the ini value benchflow_tasks names no directory that exists")


def test_an_explicit_path_is_kept(bench: Bench) -> None:
    bench.task("one")
    bench.task("two")
    assert {line.split("/")[1] for line in bench.ids("tasks/two", "--benchflow-agent=oracle")} == {"two"}


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["serial", "xdist"])
def test_oracle_and_nop_gate_on_the_reward(bench: Bench, options: tuple[str, ...]) -> None:
    bench.task("fine")
    bench.task("unsolvable", solve="#!/bin/sh\ntrue\n")
    bench.task("given-away", test="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--benchflow-agent=nop", *options)
    assert done.ret == 1
    # "unsolvable" fails its oracle, "given-away" its nop; the other four are as they should be.
    assert outcomes(done) == {"failed": 2, "solved": 2, "unsolved": 2}
    text = done.stdout.str()
    assert "the reference solution got reward 0, where it must get 1" in text
    assert "doing nothing got reward 1, where it must get less than 1" in text


def test_oracle_is_skipped_where_a_task_keeps_its_solution_to_itself(bench: Bench) -> None:
    task = bench.task()
    (task / "solution/solve.sh").unlink()
    done = bench.run("tasks", "--benchflow-agent=oracle", "--benchflow-agent=nop", "-m", "rollout", "-rs")
    assert outcomes(done) == {"skipped": 1, "unsolved": 1}
    done.stdout.fnmatch_lines(["SKIPPED * hello has no solution; oracle runs solution/solve.sh, for example *"])
    assert [path.name for path in bench.rollouts()] == ["hello__nop__none__default__1"]
