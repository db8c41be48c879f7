"""Make small, healthy rollout directories of invented data, as this plugin would leave them."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._catalogue import skill_facts
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.training.row import build_row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PROMPT = "The parser drops the last field. Fix parse.py."
SYSTEM = "You repair programs in a sandbox."
Json = dict[str, Any]


def tool(name: str, *parameters: str) -> Json:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [tool("bash", "cmd"), tool("finish", "message")]


def call(call_id: str, name: str = "bash", **arguments: Any) -> Json:
    function = {"name": name, "arguments": json.dumps(arguments or {"cmd": f"run {call_id}"})}
    return {"id": call_id, "type": "function", "function": function}


def assistant(content: str = "", *calls: Json) -> Json:
    return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})


def result_of(call_id: str, content: str = "ok") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(content: str = PROMPT) -> Json:
    return {"role": "user", "content": content}


def system(content: str = SYSTEM) -> Json:
    return {"role": "system", "content": content}


OPENING: tuple[Json, ...] = (system(), user())


def exchange(
    history: Sequence[Json],
    answer: Json | None,
    *,
    finish: str | None = "",
    tools: Sequence[Json] | None = TOOLS,
    tokens: tuple[int, int] | None = (100, 10),
    status: int = 200,
    **metadata: Any,
) -> Json:
    """Return a record of a chat exchange; without an answer it is one that failed with `status`."""
    body: Json = {"model": "coder", "messages": deepcopy(list(history))}
    if tools:
        body["tools"] = list(tools)
    request = {"method": "POST", "path": "/v1/chat/completions", "body": body}
    if answer is None:
        failure = {"type": "server_error", "message": "upstream failed"}
        response = {"status_code": status, "body": {"error": failure}}
        return {"request": request, "response": response, "error": failure, "metadata": metadata}
    if finish == "":
        finish = "tool_calls" if answer.get("tool_calls") else "stop"
    said: Json = {"choices": [{"index": 0, "finish_reason": finish, "message": deepcopy(answer)}]}
    if tokens:
        said["usage"] = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return {"request": request, "response": {"status_code": status, "body": said}, "error": None, "metadata": metadata}


class Talk:
    """A conversation that grows: each `ask` is an exchange whose answer is used."""

    def __init__(self, *opening: Json, **options: Any) -> None:
        self.history: list[Json] = list(opening or OPENING)
        self.records: list[Json] = []
        self.options = options

    def ask(self, answer: Json, *, used: bool = True, **options: Any) -> Json:
        """Add an exchange; when it is used, its answer and results of its calls become history."""
        record = exchange(self.history, answer, **{**self.options, **options})
        self.records.append(record)
        if used:
            self.use(answer)
        return record

    def use(self, answer: Json) -> None:
        self.history.append(answer)
        self.history += [result_of(each["id"], f"output of {each['id']}") for each in answer.get("tool_calls", ())]

    def say(self, message: Json) -> None:
        self.history.append(message)


def three_steps() -> list[Json]:
    """Return a run that looks, repairs and finishes."""
    talk = Talk()
    talk.ask(assistant("I look.", call("c1", cmd="cat parse.py")))
    talk.ask(assistant("", call("c2", cmd="sed -i s/x/y/ parse.py"), call("c3", cmd="pytest -q")))
    talk.ask(assistant("", call("c4", "finish", message="Fixed.")))
    return talk.records


def config(**changes: Any) -> Json:
    return {
        "task_path": "tasks/fix-parser",
        "agent": "baseline",
        "agent_version": "1",
        "model": "replay",
        "environment": "local",
        "environment_mode": "shared",
        "acp_transport": "local-stdio",
        "skill_mode": "no-skill",
        "timeout_sec": 900.0,
        "plugin_version": "0.1.0",
    } | changes


def result(records: Sequence[Json], **changes: Any) -> Json:
    """Return result.json of a rollout that went well, before what follows from its exchanges."""
    calls = [message for record in records for message in (record["request"]["body"] or {}).get("messages", ())]
    return {
        "task_name": "fix-parser",
        "rollout_name": "fix-parser__baseline__replay__default__1",
        "agent": "baseline",
        "agent_name": "baseline",
        "model": "replay",
        "task_skills_loading": 0,
        "skill_catalog": None,
        "rewards": {"reward": 1.0},
        "n_tool_calls": len({m["tool_call_id"] for m in calls if m["role"] == "tool"}),
        "n_prompts": 1,
        "agent_result": {"cost_usd": None, "price_source": None, "usage_source": "provider"},
        "error": None,
        "error_category": None,
        "verifier_error": None,
        "verifier_error_category": None,
        "export_error": None,
        "partial_trajectory": False,
        "started_at": "2026-03-01T10:00:00Z",
        "finished_at": "2026-03-01T10:01:00Z",
        "timing": {
            "agent_execution": 40.0,
            "verifier": 5.0,
            "total": 60.0,
            "agent_started_at": "2026-03-01T10:00:05Z",
            "agent_finished_at": "2026-03-01T10:00:45Z",
            "verifier_started_at": "2026-03-01T10:00:46Z",
        },
        "verifier_started_after_agent": True,
        "idle_before_timeout_s": None,
        "in_flight_at_timeout": None,
        "proxy": {"received": len(records), "recorded": len(records)},
    } | changes


def write_lines(path: Path, records: Sequence[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def write_records(path: Path, records: Sequence[Json], prompts: Sequence[str] = (PROMPT,)) -> RunDir:
    """Write the raw records of a rollout: its exchanges and its agent's events."""
    rundir = RunDir(path)
    write_lines(rundir.llm, records)
    events: list[Json] = [{"type": "user_message", "text": prompt, "phase": "agent"} for prompt in prompts]
    write_lines(rundir.acp, [*events, {"type": "agent_message", "text": "Done.", "phase": "agent"}])
    return rundir


def write_rollout(
    path: Path,
    records: Sequence[Json] | None = None,
    *,
    result_with: Json | None = None,
    config_with: Json | None = None,
) -> RunDir:
    """Write a whole rollout directory; `result_with` and `config_with` change what those files say."""
    records = three_steps() if records is None else records
    rundir = write_records(path, records)
    asked, outcome = config(**(config_with or {})), result(records, **(result_with or {}))
    row = build_row(rundir, result=outcome, config=asked)
    outcome["exchanges"] = row.summary
    outcome["agent_result"] = {**outcome["agent_result"], **row.usage}
    rundir.row.write_bytes(row.line() + b"\n")
    for target, value in (
        (rundir.config, asked),
        (rundir.result, outcome),
        (rundir.timing, outcome["timing"]),
        (rundir.prompts, [{"step": None, "prompt": PROMPT}]),
    ):
        target.write_text(json.dumps(value), "utf-8")
    if "skill_catalog" not in (result_with or {}):
        edit(rundir.result, lambda value: value.update(skill_facts(Rollout(path))))
    write_lines(rundir.rewards, [{"step": None, "rewards": outcome["rewards"]}] if outcome["rewards"] else [])
    return rundir


def edit(path: Path, change: Any) -> None:
    """Apply `change` to the JSON object in a file, or to the one of its first line."""
    value = json.loads(path.read_text("utf-8").split("\n")[0] if path.suffix == ".jsonl" else path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value) + "\n", "utf-8")
