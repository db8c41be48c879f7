"""The other options: what each takes on the command line and in the ini file, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.settings import OPTIONS

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

REFUSED = {
    "sandbox": ("cloud", "it takes one of: daytona, docker, local, scripted, ssh"),
    "job-name": ("../up", "it takes letters, digits"),
    "trials": ("0", "it takes a whole number of at least 1"),
    "agent-timeout": ("-3", "it takes a number of seconds above 0"),
    "idle-timeout": ("nan", "it takes a number of seconds above 0"),
    "skills": ("some", "it takes one of: default, with, without, both"),
    "gate": ("none", "it takes one of: health, reward"),
    "agent-env": ("1A=x", "it takes KEY=VALUE or KEY"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_value_on_the_command_line_is_refused(bench: Bench, name: str) -> None:
    value, says = REFUSED[name]
    bench.task()
    bench.refused("tasks", f"--benchflow-{name}={value}", says=f"ERROR: --benchflow-{name} ")
    bench.refused("tasks", f"--benchflow-{name}={value}", says=says)


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_ini_value_is_refused(bench: Bench, name: str) -> None:
    value, says = REFUSED[name]
    bench.task()
    bench.ini(f"benchflow_{name.replace('-', '_')} = {value}")
    bench.refused("tasks", says=f"ERROR: the ini value benchflow_{name.replace('-', '_')} ")
    bench.refused("tasks", says=says)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("trials", "many", "the ini value benchflow_trials is 'many'; it takes a whole number"),
        ("agent_timeout", "long", "the ini value benchflow_agent_timeout is 'long'; it takes a number"),
        ("keep_sandbox", "perhaps", "the ini value benchflow_keep_sandbox is 'perhaps'; it takes true or false"),
    ],
    ids=["int", "float", "bool"],
)
def test_an_ini_value_of_another_type_is_refused(bench: Bench, name: str, value: str, says: str) -> None:
    bench.ini(f"benchflow_{name} = {value}")
    bench.refused(says=says)


def test_a_variable_that_the_host_does_not_set_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_UNSET", raising=False)
    bench.task()
    bench.refused("tasks", "--benchflow-agent-env=BENCH_UNSET", says="BENCH_UNSET takes the host's value")


def test_every_option_is_in_the_help_with_its_ini_value(bench: Bench) -> None:
    text = " ".join(bench.look("--help").stdout.str().split())
    for option in OPTIONS:
        assert option.flag in text
        assert f"{option.ini} (" in text
    assert "benchflow_tasks (" in text


def test_values_in_native_toml(bench: Bench) -> None:
    bench.task()
    (bench.path / "pyproject.toml").write_text(
        '[tool.pytest]\nbenchflow_trials = 2\nbenchflow_agent_timeout = 30.5\nbenchflow_agent = ["nop"]\n'
    )
    assert len([line for line in bench.ids("tasks") if "rollout[nop" in line]) == 2


@pytest.mark.parametrize("words", [(), ("--benchflow-agent=nop",)], ids=["plain", "agent"])
def test_a_listed_directory_that_is_not_there_is_refused(bench: Bench, words: tuple[str, ...]) -> None:
    bench.ini("benchflow_tasks = nowhere")
    bench.refused(*words, says="the ini value benchflow_tasks names ")


def test_a_listed_directory_that_is_not_there_does_not_matter_to_other_paths(bench: Bench) -> None:
    bench.ini("benchflow_tasks = nowhere")
    file = bench.pytester.makepyfile("def test_pass(): pass")
    bench.look(file.name).assert_outcomes(passed=1)


def test_a_variable_that_a_sandbox_does_not_know_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_DAYTONA_ACP_TRANSPORT", "tcp")
    bench.task()
    says = "BENCHFLOW_DAYTONA_ACP_TRANSPORT is 'tcp'; it takes pty or ssh"
    bench.refused("tasks", "--benchflow-sandbox=daytona", says=says)
