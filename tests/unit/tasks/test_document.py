from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks.load import load_task
from pytest_benchflow.tasks.task import Environment, NetworkPolicy

if TYPE_CHECKING:
    from tests.unit.tasks.places import Write

FRONT = """\
---
schema_version: "1.3"
task:
  name: teahouse/tea-timer
metadata:
  added: 2024-05-01
agent:
  timeout_sec: 60
verifier:
  timeout_sec: 20
  sandbox_mode: separate
  sandbox:
    cpus: 1
sandbox:
  network_mode: no-network
  env:
    LEAF: oolong
oracle:
  env:
    HOT: "yes"
---
"""


def test_the_front_matter_and_its_names_are_read(write: Write) -> None:
    files = {"task.md": FRONT + "\nBrew some tea.\n", "verifier/test.sh": "true\n", "oracle/solve.sh": "true\n"}
    task = load_task(write({**files, "tests/test.sh": None}, document=True))
    assert (task.form, task.name, task.warnings) == ("document", "teahouse/tea-timer", ())
    assert task.environment == Environment(NetworkPolicy("no-network"), env={"LEAF": "oolong"})
    assert task.solution_env == {"HOT": "yes"}
    (step,) = task.steps
    assert step.instruction == "Brew some tea.\n"
    assert (step.agent.timeout_sec, step.verifier.timeout_sec) == (60, 20)
    assert (step.verifier.environment_mode, step.verifier.environment) == ("separate", Environment(cpus=1))
    assert (step.tests, task.tests_target) == (task.path / "verifier", "/verifier")
    assert (step.solution, task.solution_target) == (task.path / "oracle", "/oracle")


def test_it_wins_over_task_toml(write: Write) -> None:
    files: dict[str, str | None] = {"task.toml": "broken", "instruction.md": "Not this.\n"}
    task = load_task(write(files, document=True))
    assert task.file == task.path / "task.md"
    assert task.steps[0].instruction == "Brew.\n"


def test_harbors_directories_keep_harbors_places(write: Write) -> None:
    task = load_task(write({"solution/solve.sh": "true\n"}, document=True))
    assert (task.steps[0].tests, task.tests_target) == (task.path / "tests", "/tests")
    assert (task.steps[0].solution, task.solution_target) == (task.path / "solution", "/solution")


def test_its_own_directories_win_over_harbors(write: Write) -> None:
    task = load_task(write({"verifier/test.sh": "true\n"}, document=True))
    assert (task.steps[0].tests, task.tests_target) == (task.path / "verifier", "/verifier")


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        pytest.param("Brew.\n\nNow.\n", "Brew.\n\nNow.\n", id="whole-body"),
        pytest.param("# Tea\n\n## prompt\n\nBrew.\n\n## role:cook\n\nYou cook.\n", "Brew.\n", id="section"),
        pytest.param("## Prompt\nBrew.\n", "Brew.\n", id="capital"),
        pytest.param("Brew.\n## scene:kitchen\nHot.\n", "Brew.\n", id="before-the-sections"),
        pytest.param("## prompt\nBrew.\n## Steps\n1. boil\n", "Brew.\n## Steps\n1. boil\n", id="other-headings-stay"),
        pytest.param("## prompt\nSay:\n\\## prompt\n", "Say:\n## prompt\n", id="escaped-heading"),
    ],
)
def test_the_prompt_is_found(write: Write, body: str, prompt: str) -> None:
    task = load_task(write({"task.md": "---\n---\n" + body}, document=True))
    assert task.steps[0].instruction == prompt


def test_steps_have_their_own_prompts(write: Write) -> None:
    front = "---\nsteps:\n  - name: boil\n    verifier:\n      sandbox_mode: shared\n---\n"
    files = {"steps/boil/instruction.md": "Boil.\n", "steps/boil/verifier/test.sh": "true\n"}
    task = load_task(write({"task.md": front, **files}, document=True))
    (step,) = task.steps
    assert (step.name, step.instruction, step.tests) == ("boil", "Boil.\n", task.path / "steps/boil/verifier")


def test_what_is_not_played_or_known_warns(write: Write) -> None:
    front = "---\nscenes: [{name: one}]\nuser: {model: x}\nverifier:\n  type: test-script\n---\n"
    task = load_task(write({"task.md": front + "Brew.\n"}, document=True))
    unplayed = "is not used: scenes, roles and simulated users are not played, one agent gets the prompt"
    assert task.warnings == (
        f"tea-timer/task.md: scenes {unplayed}",
        f"tea-timer/task.md: user {unplayed}",
        "tea-timer/task.md: unknown key verifier.type is ignored",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "---\nagent: [\n---\nBrew.\n", r"not valid YAML at line \d: .*; allowed: keys and values", id="yaml"
        ),
        pytest.param("---\nmetadata: {made: 2024-13-40}\n---\nBrew.\n", "not valid YAML: month must", id="date"),
        pytest.param(f"---\nmetadata: {'[' * 5000}\n---\nBrew.\n", "not valid YAML", id="nested-too-deeply"),
        pytest.param("---\n- a\n---\nBrew.\n", r"the front matter is a list; allowed: keys and values", id="list"),
        pytest.param("---\nagent: {}\nBrew.\n", r"no front matter; allowed: YAML between two lines ---", id="open"),
        pytest.param("---\n---\n \n", r"the prompt is empty; write below the front matter", id="no-prompt"),
        pytest.param(
            "---\nagent:\n  timeout_sec: soon\n---\nBrew.\n",
            r"agent\.timeout_sec is 'soon' \(text\); allowed: a number of seconds above 0",
            id="wrong-type",
        ),
        pytest.param(
            "---\nsandbox: {}\nenvironment: {}\n---\nBrew.\n",
            r"environment says the same as sandbox; allowed: one of the two; keep sandbox",
            id="two-names",
        ),
        pytest.param(
            "---\nsandbox:\n  env:\n    PORT: 80\n---\nBrew.\n",
            r"environment\.env\.PORT is 80 \(a number\); allowed: a text; put it in quotes",
            id="number-as-variable",
        ),
    ],
)
def test_bad_documents_say_what_is_allowed(write: Write, text: str, message: str) -> None:
    with pytest.raises(TaskError, match=rf"\Atea-timer/task\.md: .*{message}"):
        load_task(write({"task.md": text, "verifier/test.sh": "true\n"}, document=True))


def test_a_document_without_verifier_is_refused(write: Write) -> None:
    with pytest.raises(TaskError, match=r"no verifier; a task needs verifier/test\.sh or tests/test\.sh"):
        load_task(write({"tests/test.sh": None}, document=True))


def test_yaml_builds_no_objects(write: Write) -> None:
    with pytest.raises(TaskError, match="not valid YAML"):
        load_task(write({"task.md": "---\nmetadata: !!python/object/apply:os.getcwd []\n---\nBrew.\n"}, document=True))
