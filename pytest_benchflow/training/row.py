"""Build the trainer-facing row of a rollout from its raw records: always exactly one, whatever happened."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.catalog.load import find
from pytest_benchflow.records.rows import row_chunks
from pytest_benchflow.records.trajectory import Torn, read_events, read_exchanges
from pytest_benchflow.records.values import mapping, number, reward_of
from pytest_benchflow.training.account import summary, token_sums, usage_totals
from pytest_benchflow.training.messages import Messages, scrub, without_reasoning
from pytest_benchflow.training.ready import Refusal, refusal
from pytest_benchflow.training.select import TERMINAL_TOOLS, select
from pytest_benchflow.training.threads import Exchange, analyse, assign_roles
from pytest_benchflow.training.tree import TurnTree, tool_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.records.trajectory import Log

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class Row:
    """A row and what it was made from; `reason` is None exactly when `training_ready`."""

    row: dict[str, Any]
    exchanges: list[dict[str, Any]]  # {index, outcome, role, selected, reason, tokens} by line
    training_ready: bool
    reason: str | None
    tokens: dict[str, int]  # billed, selected, excluded
    usage: dict[str, int | None]  # the token fields of result.json's agent_result
    summary: dict[str, Any]  # result.json's `exchanges`
    records: list[Exchange] = field(repr=False, default_factory=list)

    def chunks(self) -> Iterator[bytes]:
        """Yield the row as one line of strict JSON, without the newline, in pieces of a step each."""
        return row_chunks(self.row)

    def line(self) -> bytes:
        """Return the row as one line of strict JSON, without the newline."""
        return b"".join(self.chunks())


def analyse_rollout(
    log: Log, prompts: Sequence[str], terminal: Collection[str] = TERMINAL_TOOLS
) -> tuple[list[Exchange], TurnTree]:
    """Read the exchanges of a rollout, with roles and selection."""
    exchanges, tree = analyse(log)
    assign_roles(exchanges, tree, prompts)
    select(exchanges, tree, terminal)
    return exchanges, tree


def build_row(
    rundir: RunDir,
    *,
    result: Mapping[str, Any],
    config: Mapping[str, Any],
    terminal: Collection[str] | None = None,
    logs: tuple[Log, Log] | None = None,
) -> Row:
    """Build the row of results.jsonl; never raises for what the records hold.

    `terminal` names the tools that end a task; by default the agent's catalogue entry does. `logs` are the exchanges
    and the events where they have been read already.
    """
    ends = terminal_tools(result, config) if terminal is None else terminal
    if logs is None:
        logs = (
            read_exchanges(rundir.llm) if rundir.llm.is_file() else [],
            read_events(rundir.acp) if rundir.acp.is_file() else [],
        )
    prompts = agent_prompts(rundir, logs[1])
    exchanges, tree = analyse_rollout(logs[0], prompts, ends)
    no = refusal(result, exchanges, tree, ends)
    row = _row(result, config, exchanges, no)
    try:
        no = _converse(row, prompts, exchanges, result, no)
    except RecursionError:
        no = no or Refusal("not_serialisable", "An exchange is nested too deeply to be written as a row.")
        _empty(row, no)
    return _checked(row, exchanges, no)


def terminal_tools(result: Mapping[str, Any], config: Mapping[str, Any]) -> frozenset[str]:
    """Return the tools that end a task: `finish`, and what the agent's manifest names.

    Of a manifest that others declared the rollout itself tells, wherever it is read.
    """
    theirs = config.get("agent_manifest")
    if isinstance(theirs, dict):
        named = theirs.get("terminal_tools")
        return TERMINAL_TOOLS | {tool for tool in (named if isinstance(named, list) else ()) if isinstance(tool, str)}
    name = result.get("agent") or config.get("agent")
    if not isinstance(name, str) or not _PLAIN_NAME.match(name):
        return TERMINAL_TOOLS
    manifest = find(name)
    return TERMINAL_TOOLS | frozenset(manifest.host.terminal_tools if manifest else ())


def _converse(
    row: dict[str, Any], prompts: list[str], exchanges: list[Exchange], result: Mapping[str, Any], no: Refusal | None
) -> Refusal | None:
    """Add the conversation to the row and return what forbids training on it, None when nothing does."""
    messages = Messages()
    tool_defs, conflicts = tool_union(exchanges)
    selected = [exchange for exchange in exchanges if exchange.selected]
    # A step whose tools are the row's does not repeat them.
    own = {
        offer: {} if offer.tools == tool_defs else {"tool_defs": offer.tools} for offer in {e.offer for e in selected}
    }
    name = "__".join(str(part) for part in (result.get("task_name"), result.get("rollout_name")) if part)
    reward = reward_of(result)
    steps = [_step(exchange, messages, name, reward) | own[exchange.offer] for exchange in selected]
    prompt, completion = _conversation(exchanges, messages, prompts)
    if no is None and messages.problems:
        no = Refusal("invalid_arguments", "; ".join(messages.problems.values()))
        row |= _closed(no)
        row["info"] |= _readiness(no)
    row |= {"prompt": prompt, "completion": completion, "tool_defs": tool_defs, "trajectory": steps}
    row["info"] |= {
        "tool_conflicts": conflicts,
        "reasoning_parts_stripped": messages.reasoning,
        "system_messages_folded": messages.folded,
        "surrogates_replaced": messages.replaced,
        "tool_results_joined": sum(exchange.merged for exchange in exchanges if exchange.selected),
        "tool_results_dropped": sum(exchange.duplicates for exchange in exchanges if exchange.selected),
    }
    return no


def _checked(row: dict[str, Any], exchanges: list[Exchange], no: Refusal | None) -> Row:
    """Return the row, or one without its conversation when that cannot be written as strict JSON."""
    try:
        _try_to_write(row)
    except TypeError:
        try:
            steps = [{**scrub({**step, "prompt": None}), "prompt": step["prompt"]} for step in row["trajectory"]]
            row = scrub({**row, "trajectory": None}) | {"trajectory": steps}
            _try_to_write(row)
        except (TypeError, RecursionError) as error:
            no = no or Refusal("not_serialisable", f"The conversation cannot be written as strict JSON: {error}")
            _empty(row, no)
            row = scrub(row)
    return Row(
        row=row,
        exchanges=[exchange.public() for exchange in exchanges],
        training_ready=no is None,
        reason=None if no is None else no.reason,
        tokens=token_sums(exchanges),
        usage=usage_totals(exchanges),
        summary=summary(exchanges),
        records=exchanges,
    )


def _try_to_write(row: dict[str, Any]) -> None:
    """Raise TypeError when a part of the row is no strict JSON; what steps share is tried once."""
    parts: list[Any] = [{key: value for key, value in row.items() if key != "trajectory"}]
    known: list[Any] = []
    for step in row["trajectory"]:
        prompt = step["prompt"]
        repeated = len(known) if prompt[: len(known)] == known else 0
        parts.append({**step, "prompt": prompt[repeated:]})
        known = prompt
    orjson.dumps(parts)


def _row(
    result: Mapping[str, Any], config: Mapping[str, Any], exchanges: Sequence[Exchange], no: Refusal | None
) -> dict[str, Any]:
    """Return the row without its conversation."""
    reward = reward_of(result)
    usage = usage_totals(exchanges)
    n_tool_calls = result.get("n_tool_calls")
    if not isinstance(n_tool_calls, int) or isinstance(n_tool_calls, bool):
        n_tool_calls = sum(len(e.answer.tool_calls) for e in exchanges if e.selected and e.answer)
    task_name = result.get("task_name") or config.get("task_path")
    return {
        "example_id": 0,
        "info": {
            "task_id": task_name,
            "task_name": task_name,
            "rollout_name": result.get("rollout_name"),
            "environment": task_name,
            "agent": result.get("agent") or config.get("agent"),
            "agent_name": result.get("agent_name") or result.get("agent") or config.get("agent"),
            "model": result.get("model") or config.get("model"),
            "source": "benchflow",
            **_readiness(no),
            "excluded_exchanges": [
                {"index": e.index, "reason": e.reason, "tokens": e.tokens} for e in exchanges if not e.selected
            ],
        },
        "reward": reward,
        "score": reward,
        "timing": result.get("timing") if isinstance(result.get("timing"), dict) else {},
        **_closed(no),
        "is_truncated": bool(result.get("partial_trajectory")) or _truncated(exchanges),
        "metrics": _metrics(result) | {"n_tool_calls": n_tool_calls, "n_prompts": result.get("n_prompts")},
        "token_usage": {
            "input_tokens": usage["n_input_tokens"],
            "output_tokens": usage["n_output_tokens"],
            "final_input_tokens": usage["n_input_tokens"],
            "final_output_tokens": usage["n_output_tokens"],
            "total_tokens": usage["total_tokens"],
        },
        "total_tool_calls": n_tool_calls,
    }


def _empty(row: dict[str, Any], no: Refusal) -> None:
    """Take the conversation out of a row that cannot hold it, and say so."""
    row |= {"prompt": [], "completion": [], "tool_defs": [], "trajectory": []} | _closed(no)
    row["info"] |= _readiness(no)


def _readiness(no: Refusal | None) -> dict[str, Any]:
    return {"training_ready": no is None, "training_ready_reason": None if no is None else no.reason}


def _closed(no: Refusal | None) -> dict[str, Any]:
    """Return the fields that say how the rollout ended."""
    if no is None:
        return {"error": None, "is_completed": True, "stop_condition": "agent_completed"}
    return {
        "error": {
            "error": no.reason,
            "message": no.detail,
            "error_chain_str": no.detail,
            "error_chain_repr": no.detail,
        },
        "is_completed": False,
        "stop_condition": no.reason,
    }


def _truncated(exchanges: Sequence[Exchange]) -> bool:
    policy = [exchange for exchange in exchanges if exchange.role == "policy"]
    return bool(policy) and max(policy, key=lambda e: e.order).outcome == "truncated"


def _metrics(result: Mapping[str, Any]) -> dict[str, float]:
    named = {str(key): number(value) for key, value in mapping(result.get("rewards")).items()}
    return {key: value for key, value in named.items() if value is not None}


def _step(exchange: Exchange, messages: Messages, name: str, reward: float | None) -> dict[str, Any]:
    """Return the step of a selected exchange."""
    assert exchange.answer is not None
    return {
        "prompt": messages.of(exchange.turns),
        "completion": [messages.one(exchange.answer)],
        "response": without_reasoning(exchange.response),
        "tokens": None,
        "reward": reward,
        "advantage": 0.0,
        "is_truncated": False,
        "trajectory_id": f"{name}__llm_{exchange.index}",
        "extras": {
            "source": "llm_trajectory",
            "exchange_index": exchange.index,
            "thread": exchange.thread,
            "role": exchange.role,
            "trainable": exchange.role == "policy",
        },
    }


def _conversation(
    exchanges: Sequence[Exchange], messages: Messages, prompts: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return prompt and completion of the policy's last branch; the prompt ends before the first answer."""
    policy = [exchange for exchange in exchanges if exchange.role == "policy"]
    last = max((e for e in policy if e.selected), key=lambda e: e.order, default=None)
    if last is None:
        opening = min(policy, key=lambda e: e.order, default=None)
        if opening is not None:
            return messages.of(opening.turns), []
        return [{"role": "user", "content": text} for text in prompts], []
    assert last.answer is not None
    whole = [*messages.of(last.turns), messages.one(last.answer)]
    cut = next(number for number, message in enumerate(whole) if message["role"] == "assistant")
    return whole[:cut], whole[cut:]


def tool_union(exchanges: Sequence[Exchange]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tools the policy's selected exchanges offered, each with its last schema, and names with several."""
    union: dict[str, dict[str, Any]] = {}
    conflicts: set[str] = set()
    seen: set[int] = set()
    for exchange in sorted(exchanges, key=lambda e: e.order):
        if exchange.role != "policy" or not exchange.selected:
            continue
        if id(exchange.tools) in seen and not conflicts:
            continue
        seen.add(id(exchange.tools))
        for tool in exchange.tools:
            name = tool_name(tool)
            if name in union and union[name] != tool:
                conflicts.add(name)
            union[name] = tool
    return list(union.values()), sorted(conflicts)


def agent_prompts(rundir: RunDir, events: Log) -> list[str]:
    """Return the texts that the agent was prompted with, from its protocol's record, else from prompts.json."""
    prompts = []
    for event in events:
        # A torn event is a check's business.
        if isinstance(event, Torn) or event.get("type") != "user_message":
            continue
        if event.get("phase") not in ("verifier", "harness"):
            prompts.append(event_text(event))
    if not prompts and rundir.prompts.is_file():
        try:
            value = orjson.loads(rundir.prompts.read_bytes())
        except orjson.JSONDecodeError:
            value = []
        prompts = [_prompt_text(item) for item in value] if isinstance(value, list) else []
    return [prompt for prompt in prompts if prompt.strip()]


def event_text(event: Mapping[str, Any]) -> str:
    """Return the text of a protocol event, which agents put in `text` or in content blocks."""
    if isinstance(event.get("text"), str):
        return str(event["text"])
    content = event.get("content")
    blocks = content if isinstance(content, list) else [content]
    return "".join(b["text"] for b in blocks if isinstance(b, dict) and isinstance(b.get("text"), str))


def _prompt_text(item: Any) -> str:
    if isinstance(item, dict):
        return next((str(item[key]) for key in ("text", "prompt", "content") if isinstance(item.get(key), str)), "")
    return item if isinstance(item, str) else ""
