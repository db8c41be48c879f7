"""Read a rollout as the conversations that may be exported, or say why none may be."""

from __future__ import annotations

import functools
import json
import math
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.contracts import Conversation, ExchangeFacts
from pytest_benchflow.errors import RecordError
from pytest_benchflow.exporters._branches import branches, offering
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.redact import MARK, Redactor
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.secrets import without_secrets
from pytest_benchflow.records.values import mapping, reward_of
from pytest_benchflow.training.messages import Messages, scrub
from pytest_benchflow.training.row import build_row
from pytest_benchflow.training.tree import tool_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import Turn
    from pytest_benchflow.exporters._branches import Branch
    from pytest_benchflow.training.threads import Exchange


class Skipped(Exception):  # noqa: N818 - it is no error of the export
    """A rollout, or a branch of one, is left out: a reason that is counted, and the facts."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def conversations(path: Path, *, min_reward: float | None, side_calls: bool) -> list[Conversation]:
    """Return the policy's branches of a rollout, and on request the side calls'. Raises: Skipped."""
    rundir = RunDir(path)
    strange = strange_files(rundir)
    if strange:
        raise Skipped("strange_files", strange[0])
    result = _result(rundir)
    reward = reward_of(result)
    if min_reward is not None and (reward is None or reward < min_reward):
        if reward is None:
            raise Skipped("no_reward", "The verifier gave no finite reward.")
        raise Skipped("reward_too_low", f"The reward is {reward:g}, less than {min_reward:g}.")
    try:
        config = read_json(rundir.config) if rundir.config.exists() else {}
    except RecordError as error:
        raise Skipped("unreadable_config", str(error)) from None
    row = build_row(rundir, result=result, config=config)
    if row.reason is not None:
        raise Skipped(row.reason.replace(" ", "_"), str(mapping(row.row["error"]).get("message")))
    if result.get("verdict") in ("unhealthy", "skipped"):
        raise Skipped(f"verdict_{result['verdict']}", "Its own verdict speaks against it.")
    assert reward is not None, "a rollout without a finite reward is not ready for training"
    builder = _Builder(scrub(path.name), reward, row.row["info"], config.get("agent_version"))
    roles = ("policy", "side") if side_calls else ("policy",)
    return [
        builder.conversation(branch, role, number, row.records)
        for role in roles
        for number, branch in enumerate(branches(row.records, role))
    ]


def _result(rundir: RunDir) -> dict[str, Any]:
    """Read result.json. Raises: Skipped."""
    try:
        return read_json(rundir.result)
    except RecordError as error:
        fault = error
    except OSError as error:
        raise Skipped("unreadable_result", f"{rundir.result}: {error.strerror}") from None
    try:
        # NaN is legal for Python's own parser: a reward of NaN should be called by its name.
        value = json.loads(rundir.result.read_bytes())
    except (ValueError, RecursionError, OSError):
        value = None
    rewards = mapping(mapping(value).get("rewards"))
    if isinstance(rewards.get("reward"), float) and not math.isfinite(rewards["reward"]):
        raise Skipped("no_reward", f"The reward is {rewards['reward']}, not a finite number.") from None
    raise Skipped("unreadable_result", str(fault)) from None


class _Redactor(Redactor):
    """Takes out all that a review would call a secret: what leaves for training is not looked at again."""

    def text(self, value: str) -> str:
        """Return a text without secrets."""
        text, found = without_secrets(super().text(value), MARK)
        self.count += found
        return text


class _Builder:
    """Makes conversations of a rollout's branches; what branches share is made once."""

    def __init__(self, rollout: str, reward: float, info: Mapping[str, Any], agent_version: Any) -> None:
        self._rollout = rollout
        self._reward = reward
        self._info = info
        self._agent_version = agent_version
        self._messages = Messages()
        self._redactor = _Redactor()
        self._made: dict[int, tuple[dict[str, Any], dict[str, Any], int]] = {}
        self._told: set[int] = set()  # exchanges that a branch made before holds

    def conversation(self, branch: Branch, role: str, number: int, exchanges: Sequence[Exchange]) -> Conversation:
        """Return a branch as messages and tools without secrets."""
        mine = [exchange for exchange in exchanges if exchange.role == role]
        origins = _origins(branch, mine)
        written = self._messages.of(branch.turns)
        if written[0]["role"] == "system":
            origins.insert(0, None)
        messages, counts = zip(*(self._redacted(message) for message in written), strict=True)
        tools, redefined = _union(offering(branch, mine))
        tools, found = _redacted_tools(orjson.dumps(_strict(tools)))
        named = set(origins)
        used = {exchange.index: _facts(exchange) for exchange in mine if exchange.index in named}
        repeated = frozenset(self._told.intersection(used))
        self._told.update(used)
        return Conversation(
            rollout=self._rollout,
            role=role,
            branch=number,
            messages=list(messages),
            tools=tools,
            origins=tuple(origins),
            exchanges=used,
            repeated=repeated,
            reward=self._reward,
            task=_text(self._info.get("task_name")),
            agent=_text(self._info.get("agent")),
            agent_version=_text(self._agent_version),
            model=_text(self._info.get("model")),
            redactions=sum(counts) + found,
            trainable_redacted=any(n for n, m in zip(counts, messages, strict=True) if m["role"] == "assistant"),
            tools_redefined=tuple(redefined),
        )

    def _redacted(self, message: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Return a message without secrets, and how many it held; the same object for the same message."""
        made = self._made.get(id(message))
        if made is None:
            before = self._redactor.count
            clean = {key: self._redactor.value(value) for key, value in message.items() if key != "tool_calls"}
            if "tool_calls" in message:
                clean["tool_calls"] = [self._redacted_call(call) for call in message["tool_calls"]]
            made = self._made[id(message)] = (message, _strict(clean), self._redactor.count - before)
        return made[1], made[2]

    def _redacted_call(self, call: dict[str, Any]) -> dict[str, Any]:
        """Redact the values of a call's arguments; text without a secret stays as the model wrote it."""
        function = call["function"]
        before = self._redactor.count
        arguments = self._redactor.value(orjson.loads(function["arguments"]))
        text = function["arguments"] if self._redactor.count == before else orjson.dumps(arguments).decode()
        return {**call, "function": {"name": function["name"], "arguments": text}}


@functools.lru_cache(maxsize=32)
def _redacted_tools(raw: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return tools without secrets, and how many they held; most rollouts of an agent offer the same ones."""
    redactor = _Redactor()
    return redactor.value(orjson.loads(raw)), redactor.count


def _strict(value: Any) -> Any:
    """Return a JSON value without lone surrogates: itself where it holds none."""
    try:
        orjson.dumps(value)
    except TypeError:
        return scrub(value)
    return value


def _origins(branch: Branch, exchanges: Iterable[Exchange]) -> list[int | None]:
    """Return for each turn but the system's which exchange answered with it; None: no selected one did."""
    own = {len(exchange.turns): exchange.index for exchange in branch.exchanges}
    answers = {key: e.index for e in exchanges if e.selected and e.answer for key in _answer_keys(e.answer)}
    origins: list[int | None] = []
    for place, turn in enumerate(branch.turns):
        if turn.role == "assistant":
            # After a compaction a history may carry answers of an earlier branch.
            carried = (answers[key] for key in _answer_keys(turn) if key in answers)
            origins.append(own[place] if place in own else next(carried, None))
        elif turn.role != "system":
            origins.append(None)
    return origins


def _answer_keys(turn: Turn) -> list[tuple[str, str]]:
    """Return what an answer and a client's copy of it share: the ids of its calls, without calls its text."""
    return [("call", call.id) for call in turn.tool_calls] or [("text", turn.text.strip())]


def _facts(exchange: Exchange) -> ExchangeFacts:
    return ExchangeFacts(_text(mapping(exchange.response).get("model")), exchange.usage)


def _text(value: Any) -> str | None:
    return scrub(value) if isinstance(value, str) and value else None


def _union(exchanges: Iterable[Exchange]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tools that exchanges offer, each with its last schema, and the names that came with several."""
    union: dict[str, dict[str, Any]] = {}
    redefined: set[str] = set()
    for exchange in exchanges:
        for tool in exchange.tools:
            name = tool_name(tool)
            if union.get(name, tool) != tool:
                redefined.add(name)
            union[name] = tool
    return list(union.values()), sorted(redefined)
