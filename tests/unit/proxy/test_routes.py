"""From what a user types to where the answers come from; every mistake says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import ProviderError, UnsupportedError, UsageError
from pytest_benchflow.proxy.replay import ReplayUpstream
from pytest_benchflow.proxy.routes import Route, route
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.tasks.load import load_task, task_digest
from pytest_benchflow.tasks.scaffold import new_task
from tests.unit.proxy.door import CHAT, PATHS, asking, door, run

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.tasks.task import Task

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "BENCHFLOW_MODEL_API_KEY")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def task(tmp_path: Path) -> Task:
    new_task(tmp_path / "fix-it")
    return load_task(tmp_path / "fix-it")


def routed(model: str, task: Task) -> Route:
    return route(model, task=task, agent_name="baseline", replay_strict=False)


def test_only_a_script_needs_pydantic() -> None:
    look = "import sys, pytest_benchflow.proxy.routes; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "model",
    ["", "gpt-5", "openai/", "/", "script/", "vendor/name@", "vllm/name@ftp://host/v1", "vendor/name", "a/m@box:80"],
    ids=["empty", "no-provider", "no-name", "slash", "no-file", "no-url", "other-scheme", "unknown", "no-scheme"],
)
def test_a_name_of_no_known_form_is_met_with_the_forms(task: Task, model: str) -> None:
    with pytest.raises(UsageError, match=r"it takes replay, openai/<model>, anthropic/<model>"):
        routed(model, task)


def test_a_server_without_its_url_is_asked_for_that_and_not_for_a_key(task: Task) -> None:
    with pytest.raises(UsageError, match=r"'vllm/m' names no server; pass vllm/m@http://host:port/v1"):
        routed("vllm/m", task)


@pytest.mark.parametrize(
    ("model", "variable"),
    [("openai/gpt-5-mini", "OPENAI_API_KEY"), ("anthropic/claude", "ANTHROPIC_API_KEY")],
    ids=["openai", "anthropic"],
)
def test_a_missing_key_is_named(task: Task, monkeypatch: pytest.MonkeyPatch, model: str, variable: str) -> None:
    monkeypatch.setenv(variable, "")
    with pytest.raises(ProviderError, match=f"needs {variable}, which is not set"):
        routed(model, task)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OPENAI_BASE_URL", "box:8000/v1", r"OPENAI_BASE_URL is 'box:8000/v1'; it takes a URL as http://host:port/v1"),
        ("OPENAI_API_KEY", "sk-invented-1\n", "OPENAI_API_KEY has a line break or another control character in it"),
    ],
    ids=["url", "key"],
)
def test_a_variable_that_no_request_can_be_made_with_is_named(
    task: Task, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-invented-1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ProviderError, match=says) as told:
        routed("openai/m", task)
    assert "sk-invented" not in str(told.value)


def test_no_recording_is_a_skip_that_says_how_to_run_live(task: Task) -> None:
    with pytest.raises(UnsupportedError, match="pass --benchflow-model=provider/name"):
        routed("replay", task)


def record(task: Task, **facts: str) -> None:
    line = {"request": {"path": CHAT, "body": asking("x")}, "response": {"status_code": 200, "body": {}}}
    (task.path / "recorded").mkdir()
    (task.path / "recorded" / "baseline.jsonl").write_text(f"{json.dumps({'recording': facts})}\n{json.dumps(line)}\n")


def test_a_recording_names_the_model_as_it_was_named_then(task: Task) -> None:
    record(task)
    found = routed("replay", task)
    assert (found.agent_model, found.source, found.upstream_model, found.secrets) == ("m", "replay", None, ())
    assert isinstance(found.upstream, ReplayUpstream)


def test_answers_recorded_with_skills_do_not_stand_for_a_run_without(task: Task) -> None:
    record(task, skill_mode="with-skill")
    replayed = partial(route, "replay", task=task, agent_name="baseline", replay_strict=False)
    assert replayed(skill_mode="with-skill").source == "replay"
    with pytest.raises(UnsupportedError, match=r"recorded with-skill, not no-skill; pass --benchflow-model"):
        replayed(skill_mode="no-skill")


@pytest.mark.parametrize("changed", [False, True], ids=["same-task", "changed-task"])
def test_a_recording_of_another_state_of_the_task_is_told(task: Task, *, changed: bool) -> None:
    record(task, task_digest="0" * 64 if changed else task_digest(task))
    warnings = routed("replay", task).warnings
    assert warnings == (("baseline.jsonl was recorded for another state of this task",) if changed else ())


LIVE: dict[str, tuple[str, dict[str, str], str, str, str | None]] = {
    "openai": ("openai/gpt-x", {"OPENAI_API_KEY": "key-1", "OPENAI_BASE_URL": "URL"}, PATHS["chat"], "gpt-x", "key-1"),
    "anthropic": (
        "anthropic/claude-x",
        {"ANTHROPIC_API_KEY": "key-2", "ANTHROPIC_BASE_URL": "URL"},
        PATHS["messages"],
        "claude-x",
        "key-2",
    ),
    "server": ("local/org/model-x@URL", {}, PATHS["chat"], "org/model-x", None),
    "server-with-key": ("any/m-x@URL", {"BENCHFLOW_MODEL_API_KEY": "key-3"}, PATHS["responses"], "m-x", "key-3"),
}


@pytest.mark.parametrize("case", LIVE.values(), ids=LIVE.keys())
def test_a_live_model_is_reached_with_the_hosts_key(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: tuple[str, dict[str, str], str, str, str | None]
) -> None:
    model, variables, path, name, key = case

    async def work() -> None:
        provider = ScriptedUpstream([ScriptTurn(text="hello")])
        async with serving(provider) as url:
            for variable, value in variables.items():
                monkeypatch.setenv(variable, value.replace("URL", url))
            found = routed(model.replace("URL", url), task)
            assert (found.agent_model, found.upstream_model, found.source) == (name, name, "provider")
            assert found.secrets == ((key,) if key else ())
            async with door(tmp_path / "run", found.upstream, secrets=found.secrets) as agent:
                assert (await agent.post(asking("x"), path)).status == 200
            (asked,) = provider.requests
            assert asked.path == path
            assert json.loads(asked.body)["model"] == name
            shown: dict[str, Any] = {header.lower(): value for header, value in asked.headers.items()}
            sent = shown.get("x-api-key") or str(shown.get("authorization", "")).removeprefix("Bearer ")
            assert (sent or None) == key

    run(work())


def test_a_script_is_read_from_its_file(task: Task, tmp_path: Path) -> None:
    async def work() -> None:
        script = tmp_path / "model.toml"
        script.write_text('[[turns]]\ntext = "one"\n[[turns.calls]]\nname = "sh"\narguments = { cmd = "ls" }\n')
        found = routed(f"script/{script}", task)
        async with door(tmp_path / "run", found.upstream) as agent:
            message = (await agent.post(asking("x"))).json["choices"][0]["message"]
            assert message["content"] == "one"
            assert message["tool_calls"][0]["function"] == {"name": "sh", "arguments": '{"cmd": "ls"}'}
            answer = await agent.post(asking("more"))
            assert (answer.status, "no more turns" in answer.json["error"]["message"]) == (502, True)

    run(work())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("turns = 3", "holds no list of turns"),
        ("[[turns]]\ntxt = 'x'", "turn 1: txt: .*; it takes text, calls"),
        ("[[turns]]\ncalls = 3", "turn 1: calls: "),
        ("[[turns]]\n[[turns.calls]]\nname = 'f'\nargs = 1", "turn 1: calls.1.args: .*; it takes name, arguments, id"),
        ("[[turns]]\n[[turns.calls]]\nid = 'f'", "turn 1: calls.1.name: "),
        ("[[turns]]\n[[turns]]\ntext = 3", "turn 2: text: "),
        ("[[turns]", "cannot be read as a script"),
    ],
    ids=["no-list", "unknown-key", "calls-number", "unknown-call-key", "no-name", "text-number", "no-toml"],
)
def test_a_mistake_in_a_script_names_file_turn_and_key(task: Task, tmp_path: Path, text: str, said: str) -> None:
    script = tmp_path / "model.toml"
    script.write_text(text)
    with pytest.raises(UsageError, match=said) as raised:
        routed(f"script/{script}", task)
    assert str(script) in str(raised.value)


def test_a_script_that_is_not_there_is_a_usage_error(task: Task) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        routed("script/nowhere.toml", task)
