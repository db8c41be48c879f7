"""How an agent that does not read its environment is told its model, and brought what its installation left at home."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.catalog.load import Manifest
from tests.contracts.agentrig import rig

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import AgentOutcome

# Says in its only message what it was sent between the new session and the prompt.
SAYS_WHAT_CAME = """
send(id=receive("initialize")["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
send(id=receive("session/new")["id"], result={"sessionId": "s", **MADE})
seen = []
while (message := receive())["method"] != "session/prompt":
    seen.append([message["method"], message["params"]])
    answer = {"result": {}} if ACCEPTS else {"error": {"code": -32601, "message": "Method not found"}}
    send(id=message["id"], **answer)
update("agent_message_chunk", content={"type": "text", "text": json.dumps(seen)})
end(message["id"])
"""
OPTIONS = {
    "configOptions": [
        {"id": "mode", "name": "Mode", "category": "mode", "type": "select", "currentValue": "code", "options": []},
        {"id": "llm", "name": "Model", "category": "model", "type": "select", "currentValue": "a", "options": []},
    ]
}


def play(directory: Path, made: dict[str, Any], *, model_id: str | None, accepts: bool = True) -> tuple[Any, Any]:
    """Return the outcome and what the agent said."""
    program = f"MADE, ACCEPTS = {made!r}, {accepts!r}\n{SAYS_WHAT_CAME}"

    async def run() -> tuple[AgentOutcome, str]:
        async with rig(directory) as sandbox:
            outcome = await sandbox.play(program, model_id=model_id)
            return outcome, "".join(event["text"] for event in sandbox.events("agent_message"))

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("made", "model_id", "seen"),
    [
        ({}, "invented/small", '[["session/set_model", {"sessionId": "s", "modelId": "invented/small"}]]'),
        (
            OPTIONS,
            "small",
            '[["session/set_config_option", {"sessionId": "s", "configId": "llm", "value": "small"}]]',
        ),
        ({"configOptions": "none"}, "small", '[["session/set_model", {"sessionId": "s", "modelId": "small"}]]'),
        (OPTIONS, None, "[]"),
    ],
    ids=["by-its-method", "by-an-option", "options-that-are-none", "not-told"],
)
def test_the_model_is_named_after_the_new_session(
    made: dict[str, Any], model_id: str | None, seen: str, tmp_path: Path
) -> None:
    outcome, said = play(tmp_path, made, model_id=model_id)
    assert (outcome.stop, outcome.error, said) == ("finished", None, seen)


def test_an_agent_that_refuses_its_model_has_not_run(tmp_path: Path) -> None:
    outcome, said = play(tmp_path, {}, model_id="small", accepts=False)
    assert (outcome.stop, said) == ("crashed", "")
    assert "answered session/set_model with error -32601" in str(outcome.error)
    assert "supports_acp_set_model = false" in str(outcome.error)


INVENTED = Manifest(contract_version="1.0", name="invented", install_cmd="true", launch_cmd="exec cat")


@pytest.mark.parametrize(
    ("form", "supports", "told"),
    [
        ("bare", True, "small"),
        ("provider/model", True, "benchflow/small"),
        ("registered-provider/model", True, "benchflow/small"),
        ("provider/model", False, None),
    ],
    ids=["bare", "provider", "registered", "environment"],
)
def test_the_manifest_says_how_the_model_is_named(form: str, supports: bool, told: str | None) -> None:
    agent = CatalogAgent(replace(INVENTED, acp_model_format=form, supports_acp_set_model=supports))
    assert agent._model_id("small") == told
