"""What is collected from a task, by which ids, and what a broken task says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import SOLVED, TASK_TOML, UNSOLVED, outcomes

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

DOCUMENT = """\
---
schema_version: "1.4"
---
Write done into /app/out.txt.
"""


def test_ids_are_stable_and_each_selects_its_item(bench: Bench) -> None:
    bench.task()
    ids = bench.ids("tasks", "--benchflow-agent=oracle")
    assert ids == bench.ids("tasks", "--benchflow-agent=oracle")
    assert len(ids) == len(set(ids)) > 10
    assert all(line.startswith(("tasks/hello/task.toml::rollout[", "tasks/hello/task.toml::check_")) for line in ids)
    for line in (ids[0], ids[-1]):
        assert bench.ids(line, "--benchflow-agent=oracle") == [line]


def test_a_document_task_is_collected_by_its_file(bench: Bench) -> None:
    bench.write(bench.path / "tasks" / "doc", {"task.md": DOCUMENT, "verifier/test.sh": "#!/bin/sh\n"})
    assert f"tasks/doc/task.md::{UNSOLVED}" in bench.ids("tasks", "--benchflow-agent=nop")


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("-k", "second"), {"second"}),
        (("-k", "reward_is_finite and first"), {"first"}),
        (("-m", "rollout"), {"first", "second"}),
        (("-m", "check"), {"first", "second"}),
        (("-m", "benchflow and not rollout and not check"), set()),
    ],
    ids=["k-task", "k-check", "m-rollout", "m-check", "m-benchflow"],
)
def test_selection_by_keyword_and_marker(bench: Bench, options: tuple[str, ...], left: set[str]) -> None:
    bench.task("first")
    bench.task("second")
    ids = bench.ids("tasks", "--benchflow-agent=nop", "--strict-markers", *options)
    assert {line.split("/")[1] for line in ids} == left
    if "rollout" in options:
        assert all("::rollout[" in line for line in ids)


def test_an_agent_without_a_model_gets_no_checks_of_exchanges(bench: Bench) -> None:
    bench.task()
    checks = {line.partition("::")[2].partition("[")[0] for line in bench.ids("tasks", "--benchflow-agent=nop")}
    of_models = {line.partition("::")[2].partition("[")[0] for line in bench.ids("tasks")}
    assert checks < of_models


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[verifier\n", "task.toml"),
        ('[verifier]\ntimeout_sec = "soon"\n', "timeout_sec"),
    ],
    ids=["not-toml", "wrong-type"],
)
@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_broken_task_is_one_collection_error_without_traceback(
    bench: Bench, toml: str, says: str, workers: str
) -> None:
    bench.task("broken", toml=toml)
    done = bench.run("tasks", "--benchflow-agent=nop", "-n", workers)
    assert done.ret in (1, 2)
    assert done.parseoutcomes()["errors" if "errors" in done.parseoutcomes() else "error"] == 1
    text = done.stdout.str()
    assert says in text
    assert "Traceback" not in text
    assert "tasks/broken/task.toml" in text


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_an_unknown_key_warns_once(bench: Bench, workers: str) -> None:
    bench.task(toml=TASK_TOML + '[extra]\nshape = "round"\n')
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop", "-n", workers)
    assert done.ret == 0
    assert done.parseoutcomes()["warning" if "warning" in done.parseoutcomes() else "warnings"] == 1
    assert "extra" in done.stdout.str()


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_an_unknown_key_is_an_error_in_a_sentence_where_warnings_are_errors(bench: Bench, workers: str) -> None:
    bench.task(toml=TASK_TOML + "timeout = 3\n")
    bench.ini("filterwarnings = error")
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop", "-n", workers)
    assert done.ret in (1, 2)
    assert done.parseoutcomes() == {"error": 1} or done.parseoutcomes() == {"errors": 1}
    text = done.stdout.str()
    assert "hello/task.toml: unknown key verifier.timeout is ignored; probably timeout_sec is meant" in text
    assert "plugin" not in text.partition("ERRORS")[2]
    assert ".py" not in text.partition("ERRORS")[2]


def test_tasks_of_one_name_get_directories_of_their_own(bench: Bench) -> None:
    bench.task("same", under="first")
    bench.task("same", under="second")
    done = bench.run("first", "second", "-m", "rollout", "--benchflow-agent=oracle")
    assert done.ret == 0
    assert done.parseoutcomes()["solved"] == 2
    names = [path.name for path in bench.rollouts()]
    assert len(set(names)) == 2
    assert all(
        name.startswith(SOLVED.replace("rollout[oracle-none-default-1]", "same__oracle__none")) for name in names
    )


@pytest.mark.parametrize(
    "conftest",
    [
        "def pytest_collection_modifyitems(items):\n    for item in items:\n        item.add_marker('skip')\n",
        "import pytest\n\n\n@pytest.fixture\ndef agent():\n    pytest.skip('not today')\n",
    ],
    ids=["marker", "fixture"],
)
def test_a_conftest_may_skip_items(bench: Bench, conftest: str) -> None:
    bench.task()
    bench.write(bench.path, {"conftest.py": conftest})
    done = bench.run("tasks", "-m", "rollout", "-rs", "--benchflow-agent=nop")
    assert outcomes(done) == {"skipped": 1}
    done.stdout.fnmatch_lines(["SKIPPED [[]1[]] tasks/hello/task.toml*: *"])
