"""Every artifact is there, not empty, readable, and of this rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import is_ours, rebuilt, strange, the_row, uses_model
from pytest_benchflow.records.journal import read_json, read_lines, read_records
from pytest_benchflow.records.pending import VOID
from pytest_benchflow.records.values import integer, mapping, number

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout

_IDENTITY = ("task_name", "rollout_name", "agent")


@check()
def check_files_are_plain(rollout: Rollout) -> None:
    """The rollout's files are its own: no link leads out of it, and none is a pipe or a device."""
    refused = strange(rollout)
    assert not refused, "; ".join(refused)


@check()
def check_result_readable(rollout: Rollout) -> None:
    """result.json is a JSON object that names the task, the rollout and the agent."""
    _named(rollout.dir.result, rollout.result, _IDENTITY)


@check()
def check_config_readable(rollout: Rollout) -> None:
    """config.json is a JSON object that names the task, the agent and the sandbox."""
    _named(rollout.dir.config, rollout.config, ("task_path", "agent", "environment"))


@check()
def check_llm_trajectory_readable(rollout: Rollout) -> None:
    """llm_trajectory.jsonl holds at least one exchange, each with a request body."""
    path = rollout.dir.llm
    if not uses_model(rollout):
        # Nothing may be in it, but what is in it must be whole.
        assert not rollout.exchanges, f"{path.name}: {len(rollout.exchanges)} exchanges of an agent that has no model"
        return
    if not rollout.exchanges:
        _present(path)
    for index, record in enumerate(rollout.exchanges):
        request = record.get("request")
        assert isinstance(request, dict), f"{path.name}: exchange {index} has no request object"
        assert isinstance(request.get("path"), str), f"{path.name}: exchange {index} has no request path"
        ended = isinstance(record.get("response"), dict) or isinstance(record.get("error"), dict)
        assert ended, f"{path.name}: exchange {index} has neither a response nor an error"


@check()
def check_acp_trajectory_readable(rollout: Rollout) -> None:
    """acp_trajectory.jsonl holds events, each with a type, and some of them are the agent's."""
    path = rollout.dir.acp
    if not uses_model(rollout):
        list(rollout.events)
        return
    if not rollout.events:
        _present(path)
    agent_side = 0
    for line, event in enumerate(rollout.events, 1):
        assert isinstance(event.get("type"), str) and event["type"], f"{path.name}:{line}: an event without a type"
        agent_side += event.get("phase") not in ("verifier", "harness")
    assert agent_side, f"{path.name}: none of the {len(rollout.events)} events is the agent's"


@check()
def check_results_row_readable(rollout: Rollout) -> None:
    """results.jsonl holds exactly one row of strict JSON, and it is this task's."""
    path = rollout.dir.row
    rows = rollout.rows
    if not rows:
        _present(path)
    assert len(rows) == 1, f"{path.name}: {len(rows)} rows, where a rollout has exactly one"


@check(category="training", needs=("row", "result"))
def check_row_of_this_task(rollout: Rollout) -> None:
    """The row names the task that result.json names, and no other rollout of it."""
    info = the_row(rollout).get("info")
    assert isinstance(info, dict), "results.jsonl: the row has no info object"
    task = rollout.result.get("task_name")
    for key in ("task_id", "task_name"):
        assert info.get(key, task) == task, (
            f"results.jsonl: task mismatch, {key} {info.get(key)!r} in a row of {task!r}"
        )
    named = info.get("task_id") or info.get("task_name")
    assert named, "results.jsonl: the row names no task"
    rollouts = [name for name in (info.get("rollout_name"), rollout.result.get("rollout_name")) if name is not None]
    assert len(set(map(str, rollouts))) < 2, (
        f"results.jsonl: the row is of the rollout {rollouts[0]!r}; result.json is of {rollouts[-1]!r}"
    )


@check(needs=("ours",))
def check_no_request_left_open(rollout: Rollout) -> None:
    """llm_pending.jsonl holds no request: every one that began was recorded as ended."""
    path = rollout.dir.llm_pending
    left = sum(not line.startswith(VOID) for _, line in read_lines(path)) if path.is_file() else 0
    assert not left, f"{path.name}: {left} requests began and were never recorded as ended"


@check(needs=("ours",))
def check_prompts_and_timing_readable(rollout: Rollout) -> None:
    """prompts.json and timing.json are there and can be read."""
    _present(rollout.dir.prompts)
    read_json(rollout.dir.timing)


@check(needs=("ours", "result"))
def check_rewards_journal_agrees(rollout: Rollout) -> None:
    """A rollout with a reward has a line for it in rewards.jsonl."""
    if rollout.reward is None:
        return
    _present(rollout.dir.rewards)
    assert list(read_records(rollout.dir.rewards)), "rewards.jsonl: no line, though result.json has a reward"


@check(needs=("result",))
def check_timing_recorded(rollout: Rollout) -> None:
    """result.json says when the rollout started and ended, or how long it took."""
    result = rollout.result
    timing = mapping(result.get("timing"))
    assert result.get("started_at"), "result.json: no timing, started_at is missing"
    assert result.get("finished_at"), "result.json: no timing, finished_at is missing"
    total, seconds = timing.get("total"), number(timing.get("total"))
    assert seconds is not None and seconds >= 0, f"result.json: timing.total is {total!r}, not a number of seconds"


@check(category="accounting", needs=("model", "result"))
def check_token_usage_recorded(rollout: Rollout) -> None:
    """result.json has the tokens of the rollout, more than none."""
    usage = mapping(rollout.result.get("agent_result"))
    total = usage.get("total_tokens")
    parts = [integer(usage.get(name)) for name in ("n_input_tokens", "n_output_tokens")]
    if total is None and None not in parts:
        total = sum(part or 0 for part in parts)
    if rebuilt(rollout).exchanges and not rebuilt(rollout).tokens["billed"] and is_ours(rollout):
        # Every request failed: there is nothing to bill, and other checks say why.
        assert not total, f"result.json: {total} tokens, though no exchange reports any"
        return
    assert (number(total) or 0.0) > 0, f"result.json: token usage is {total!r}; a model rollout uses some"


@check(needs=("model", "result"))
def check_tool_calls_counted(rollout: Rollout) -> None:
    """result.json counts the agent's tool calls, and not as none where the model made some."""
    count = rollout.result.get("n_tool_calls")
    assert isinstance(count, int) and not isinstance(count, bool), (
        f"result.json: n_tool_calls is {count!r}, not a count"
    )
    assert count >= 0, f"result.json: n_tool_calls is {count}"
    made = _calls_with_results(rollout) if not count else 0
    assert not made, f"result.json: n_tool_calls is 0, though the model's tool calls got {made} results"


def _calls_with_results(rollout: Rollout) -> int:
    """Count the tool results that the policy's requests carry."""
    policy = [exchange for exchange in rebuilt(rollout).records if exchange.role == "policy"]
    return len({turn.tool_call_id for exchange in policy for turn in exchange.turns if turn.role == "tool"})


def _named(path: Path, record: dict[str, Any], keys: tuple[str, ...]) -> None:
    for key in keys:
        assert isinstance(record.get(key), str) and record[key], (
            f"{path.name}: {key} is {record.get(key)!r}, not a name"
        )


def _present(path: Path) -> None:
    assert path.is_file(), f"{path.parent.name}/{path.name} is missing"
    with path.open("rb", buffering=0) as file:
        # What is in it is judged where it is parsed: here one piece with something in it is enough.
        filled = any(not piece.isspace() for piece in iter(lambda: file.read(4096), b""))
    assert filled, f"{path.parent.name}/{path.name} is empty"
