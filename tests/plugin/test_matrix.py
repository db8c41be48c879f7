"""A matrix in a TOML file: which rollouts it makes, what is refused, what options change, and how it is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

FILE = """
tasks = ["tasks"]
agents = ["oracle", "nop"]
trials = 2

[[exclude]]
task = "be*"
agent = "nop"

[[exclude]]
agent = "oracle"
trial = 2

[[include]]
agent = "baseline"
task = "beta"
trials = 1
reasoning-effort = "high"
"""
NAMED = "--benchflow-matrix=benchflow.toml"


@pytest.fixture
def two(bench: Bench) -> Bench:
    bench.task("alpha")
    bench.task("beta")
    bench.write(bench.path, {"benchflow.toml": FILE})
    return bench


def job(bench: Bench, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((bench.path / "jobs" / name / "job.json").read_text("utf-8"))
    return value


def cells(bench: Bench, *arguments: str) -> list[str]:
    found = bench.ids("-m", "rollout", *arguments)
    return [each.replace("tasks/", "").replace("/task.toml::rollout", "") for each in found]


def test_what_fits_an_exclude_is_left_out_and_an_include_is_added_with_its_own_settings(two: Bench) -> None:
    assert cells(two, NAMED) == [
        "alpha[oracle-none-default-1]",
        "alpha[nop-none-default-1]",
        "alpha[nop-none-default-2]",
        "beta[oracle-none-default-1]",
        "beta[baseline-replay-default-1]",
    ]


def test_a_file_that_nobody_names_is_not_used_and_named_by_the_ini_file_it_is(two: Bench) -> None:
    assert two.ids() == []
    done = two.look("tasks", "--collect-only", "--benchflow-agent=nop")
    assert "benchflow: benchflow.toml is in the root directory and not used" in " ".join(done.outlines)
    assert cells(two, "tasks/alpha", "--benchflow-agent=nop") == ["alpha[nop-none-default-1]"]
    two.ini("benchflow_matrix = benchflow.toml")
    assert len(cells(two)) == 5


def test_options_count_over_the_file_and_each_is_said(two: Bench) -> None:
    options = (NAMED, "--benchflow-trials=1", "--benchflow-agent=baseline", "--benchflow-agent=nop")
    done = two.look(
        "tasks/beta", "--collect-only", "-m", "rollout", *options, "--benchflow-reasoning-effort=low", "-k", "baseline"
    )
    text = done.outlines
    for line in (
        "matrix of benchflow.toml",
        "--benchflow-agent over the agents of benchflow.toml",
        "--benchflow-trials over the trials of benchflow.toml",
        "--benchflow-trials over the trials of include 1 of benchflow.toml",
        "--benchflow-reasoning-effort over the reasoning-effort of include 1 of benchflow.toml",
        "the paths on the command line over the tasks of benchflow.toml",
    ):
        assert f"benchflow: {line}" in text
    assert any("[baseline-replay-default-1]" in line for line in text)
    left = two.look("--collect-only", NAMED, "--benchflow-agent=nop", "-m", "rollout").outlines
    assert "benchflow: --benchflow-agent leaves include 1 of benchflow.toml out" in left
    assert not any("baseline" in line for line in left)


def test_a_file_that_only_includes_has_no_other_cells(two: Bench) -> None:
    two.write(two.path, {"benchflow.toml": '[[include]]\nagent = ["nop", "oracle"]\ntask = "al*"\ntrials = 2\n'})
    expected = [f"alpha[{agent}-none-default-{trial}]" for agent in ("nop", "oracle") for trial in (1, 2)]
    assert cells(two, "tasks", NAMED) == expected


def test_a_cell_that_is_asked_for_twice_alike_is_one_and_otherwise_refused(two: Bench) -> None:
    twice = 'agents = ["nop"]\n[[include]]\nagent = "nop"\ntrials = 2\n'
    two.write(two.path, {"benchflow.toml": twice})
    assert cells(two, "tasks/alpha", NAMED) == ["alpha[nop-none-default-1]", "alpha[nop-none-default-2]"]
    two.write(two.path, {"benchflow.toml": f"{twice}agent-timeout = 5\n"})
    # Once, however many tasks it is so for.
    two.refused(
        "tasks",
        NAMED,
        says="nop-none-default-1 of the task alpha is asked for twice, with agent_timeout None and 5.0",
    )
    both = '[[include]]\nagent = "baseline"\nreasoning-effort = "{}"\n'
    two.write(two.path, {"benchflow.toml": both.format("low") + both.format("high")})
    two.refused("tasks", NAMED, says="is asked for twice, with reasoning_effort 'low' and 'high'")


def test_excludes_that_leave_nothing_are_refused_with_what_they_leave_out(two: Bench) -> None:
    two.write(two.path, {"benchflow.toml": 'agents = ["nop"]\ntrials = 2\n[[exclude]]\nagent = "n*"\n'})
    two.refused("tasks", NAMED, says="benchflow.toml: [[exclude]] leaves nothing to run of 4 cells of 2 tasks; narrow")
    two.write(two.path, {"benchflow.toml": 'agents = ["nop"]\n[[exclude]]\ntask = "beta"\n'})
    two.refused("tasks/beta", NAMED, says="[[exclude]] leaves nothing to run of 1 cell of 1 task; narrow")
    assert cells(two, "tasks", NAMED) == ["alpha[nop-none-default-1]"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("agents = [", "benchflow.toml: is no TOML"),
        ('agent = ["nop"]', "benchflow.toml: agent is no key; it takes"),
        ("reasoning_effort = 'low'", "reasoning-effort is near it"),
        ("agents = 'nop'", "benchflow.toml: agents is 'nop'; it takes a list of texts, at least one"),
        ("agents = []", "benchflow.toml: agents is []; it takes a list of texts, at least one"),
        ("agents = ['nob']", "benchflow.toml: agents is 'nob'; it takes one of: "),
        ("trials = true", "benchflow.toml: trials is True; it takes a whole number"),
        ("trials = 0", "benchflow.toml: trials is 0; it takes a whole number of at least 1"),
        ("skills = 'all'", "benchflow.toml: skills is 'all'; it takes one of: default, with, without, both"),
        ("agent-timeout = 'long'", "benchflow.toml: agent-timeout is 'long'; it takes a number"),
        ("tasks = ['gone']", "which is no directory; name directories of tasks, relative to the file"),
        ("exclude = 3", "benchflow.toml: exclude is 3; it takes tables, each headed by [[exclude]]"),
        ("[[exclude]]", "benchflow.toml: exclude 1 is empty and would leave everything out"),
        ("[[exclude]]\ntrial = 0", "benchflow.toml: exclude 1: trial is 0; it takes whole numbers of at least 1"),
        ("[[exclude]]\nagent = 'nob*'", "agent of exclude 1 is 'nob*', which fits none of: baseline"),
        ("[[include]]\nmodel = 'replay'", "benchflow.toml: include 1 names no agent"),
        ("[[include]]\nagent = 'nop'\nmodel-timeout = 0", "include 1: model-timeout is 0.0; it takes a number of"),
        ("[[include]]\nagent = 'nob'", "is 'nob'; it takes one of: "),
        ("min-pass-rate = 2", "benchflow.toml: min-pass-rate is 2.0; it takes a share above 0, up to 1"),
    ],
)
def test_what_a_file_may_not_say_is_refused_by_its_name(two: Bench, text: str, says: str) -> None:
    two.write(two.path, {"benchflow.toml": text})
    two.refused("tasks", "--benchflow-matrix=benchflow.toml", says=says)


def test_patterns_of_tasks_fit_one_of_the_files_own(two: Bench) -> None:
    for kind in ("exclude", "include"):
        text = f"tasks = ['tasks']\nagents = ['nop']\n[[{kind}]]\nagent = 'nop'\ntask = 'alpa'\n"
        two.write(two.path, {"benchflow.toml": text})
        two.refused(NAMED, says=f"task of {kind} 1 is 'alpa', which fits no task of this session; there are alpha")
    # Whoever names fewer tasks means those.
    assert cells(two, "tasks/beta", NAMED) == ["beta[nop-none-default-1]"]


def test_a_file_that_is_not_there_is_named(two: Bench) -> None:
    two.refused("--benchflow-matrix=none.toml", says="none.toml: cannot be read (No such file or directory)")
    two.refused("--benchflow-matrix=", says="--benchflow-matrix is ''; it takes a TOML file")


def test_the_matrix_is_shown_with_counts(two: Bench) -> None:
    plain = two.look("tasks", "--collect-only", "--benchflow-agent=nop", "--benchflow-trials=2").outlines
    assert "2 tasks x 1 agent x 1 model x 1 skill mode x 2 trials = 4 rollouts" in plain
    found = two.look("--collect-only", NAMED, "--benchflow-canary=alpha").outlines
    shown = found[found.index(next(line for line in found if line.strip("=") == " matrix ")) + 1 :]
    assert shown[:6] == [
        "2 tasks x 3 agents x 1 model x 1 skill mode x 2 trials: 5 rollouts, 3 of them canaries",
        "  oracle · none · default: 2, canaries 1",
        "  nop · none · default: 2, canaries 2",
        "  baseline · replay · default: 1",
        "canaries: alpha",
        "left out by [[exclude]], of these tasks: 4",
    ]
    assert not any(line.startswith("canaries:") for line in two.look("--collect-only", "-q", NAMED).outlines)


def test_job_json_is_the_same_with_workers_and_tells_of_each_cell(two: Bench) -> None:
    found = []
    settings = "agent-timeout = 300\n"
    two.write(two.path, {"benchflow.toml": settings + FILE.partition("[[include]]")[0]})
    for name, workers in (("one", "0"), ("two", "2")):
        done = two.run("-m", "rollout", NAMED, f"--benchflow-job-name={name}", "-n", workers)
        assert done.ret == 0, done.outlines
        found.append({key: job(two, name)[key] for key in ("matrix", "digests")})
    assert found[0] == found[1]
    assert [cell["rollout"] for cell in found[0]["matrix"]] == [
        f"{name}__none__default__{trial}"
        for name, trial in (("alpha__nop", 1), ("alpha__nop", 2), ("alpha__oracle", 1), ("beta__oracle", 1))
    ]
    assert found[0]["digests"]["prices"] == {}
    two.write(two.path, {"benchflow.toml": FILE.partition("[[include]]")[0]})
    assert two.run("-m", "rollout", NAMED, "--benchflow-job-name=three", "-k", "oracle").ret == 0
    assert job(two, "three")["digests"]["settings"] != found[0]["digests"]["settings"]


def test_a_matrix_and_its_prices_go_to_workers_elsewhere_or_are_refused(two: Bench) -> None:
    far, prices = two.path.parent / f"{two.path.name}-far", '[models."m/m"]\ninput = 1\noutput = 2\n'
    far.mkdir()
    made = 'agents = ["nop"]\nsandbox = "scripted"\nprices = "p.toml"\n'
    two.write(two.path, {"conf/m.toml": made, "conf/p.toml": prices, ".hidden/p.toml": prices})
    two.write(far, {"p.toml": prices})
    tx = ("-m", "rollout", f"--tx=popen//chdir={far}")
    done = two.run("tasks/alpha", "--benchflow-matrix=conf/m.toml", *tx)
    assert done.ret == 0, done.outlines
    assert done.parseoutcomes()["unsolved"] == 1
    for file, says in (
        (far / "p.toml", "which lies outside it"),
        (two.path / ".hidden/p.toml", "which is not copied"),
    ):
        asked = ("tasks", "--benchflow-agent=nop", f"--benchflow-prices={file}", *tx)
        two.refused(*asked, says=f"--benchflow-prices names {file}, {says}; other machines get the root directory")
