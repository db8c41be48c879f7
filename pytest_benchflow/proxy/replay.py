"""Answer from a recording: requests are matched by what was said, not by bytes, order or machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.errors import RecordError, ReplayMismatchError
from pytest_benchflow.proxy._controls import path_model
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    from pytest_benchflow.contracts import Dialect, ModelRequest, Turn
    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.tasks.task import Task

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
# Times and generated ids inside a prompt say when and where an agent ran, not what it was asked.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?"
    # Written out, as in "Monday, November 30, 2026" or "Mon Nov 30 2026", and with slashes.
    rf"|\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{{0,6}},? )?(?:{_MONTH} \d{{1,2}}|\d{{1,2}} {_MONTH}),? \d{{4}}\b"
    r"|\b\d{1,2}/\d{1,2}/\d{4}\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)
# What agents add to a tool's output about the machine they run on, not about what the tool did.
_HOST_NOTE = re.compile(r"\n?\[Python interpreter: [^\]\n]*\]|\x1b\[\?2004[hl]\r?")
_SHOWN = 200
_COMPARED = 2000
# What says how a model is instructed and equipped, in the words of every format.
_NOT_MATCHED = frozenset({"tools", "system", "instructions", "systemInstruction", "system_instruction"})


@dataclass(frozen=True, slots=True)
class _Said:
    """One turn as far as it must agree; `output` of a tool result may differ."""

    role: str
    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()  # id, name, arguments
    call_id: str | None = None

    def __str__(self) -> str:
        if self.role == "tool":
            return f"tool result of {self.call_id}"
        calls = "".join(f" {name}({arguments})[{call_id}]" for call_id, name, arguments in self.calls)
        return f"{self.role}: {self.text!r}{calls}"


@dataclass(slots=True)
class _Recorded:
    """One exchange of a recording."""

    line: int
    said: tuple[_Said, ...]
    outputs: tuple[str, ...]
    chain: str | None
    dialect: str
    model: str
    status: int
    body: Any
    uses: int = 0


def recording_path(task: Task, agent_name: str) -> Path:
    """Return where the recording of an agent on a task is kept."""
    return task.path / "recorded" / f"{Path(agent_name).name}.jsonl"


class ReplayUpstream:
    """An upstream that gives a recording's answers; an answer's metadata warns of tool outputs not as recorded.

    `model` is the name by which the agent called its model then: some agents choose their wire format by it. `facts`
    says what was recorded: the task's digest, the agent's version, the skill mode.
    """

    replays = True

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self._path = path
        self._strict = strict
        self.facts = _facts(path)
        self._exchanges = list(_read(path))
        if not self._exchanges:
            raise RecordError(f"{path}: holds no exchange")
        self.model = self._exchanges[0].model

    async def send(self, request: ModelRequest) -> ModelResponse:
        """Answer as recorded. Raises: ReplayMismatchError showing the first difference."""
        dialect = dialect_for(request.path)
        try:
            asked = loads(request.body)
        except ValueError:
            asked = None
        if dialect is None or not isinstance(asked, dict):
            raise ReplayMismatchError(f"{self._path.name}: the request to {request.path} holds no JSON object")
        found, warnings = self._find(dialect, asked)
        found.uses += 1
        metadata: dict[str, Any] = {"replayed_line": found.line}
        if warnings:
            metadata["warnings"] = warnings
        streamed = dialect.streams(request.path, asked)
        if streamed and 200 <= found.status < 300:
            parts = dialect.disassemble(found.body, asked, request.path)
            return ModelResponse(found.status, {"Content-Type": f"{streamed}; charset=utf-8"}, _each(parts), metadata)
        headers = {"Content-Type": "application/json"}
        return ModelResponse(found.status, headers, _each((dumps(found.body),)), metadata)

    async def close(self) -> None:
        """Do nothing: a recording holds no connection."""

    def _find(self, dialect: Dialect, asked: Mapping[str, Any]) -> tuple[_Recorded, list[str]]:
        said, outputs = _said(dialect.request_turns(asked))
        chain = asked.get("previous_response_id")
        same = [
            each for each in self._exchanges if (each.dialect, each.chain, each.said) == (dialect.name, chain, said)
        ]
        if not same:
            raise ReplayMismatchError(f"{self._path.name}: {self._difference(dialect.name, chain, said)}")
        # A request sent again gets its answer again; among equals the one whose outputs agree comes first.
        found = min(same, key=lambda each: (each.uses, each.outputs != outputs, each.line))
        differing = list(self._differing(found, said, outputs))
        if differing and self._strict:
            raise ReplayMismatchError(differing[0])
        return found, differing

    def _differing(self, found: _Recorded, said: tuple[_Said, ...], outputs: tuple[str, ...]) -> Iterator[str]:
        """Yield what is different in each tool output that is not as recorded."""
        results = [turn for turn in said if turn.role == "tool"]
        for result, recorded, got in zip(results, found.outputs, outputs, strict=True):
            if _HOST_NOTE.sub("", recorded) == _HOST_NOTE.sub("", got):
                continue
            start = _common(recorded, got)
            yield (
                f"{self._path.name}: the output of {result.call_id} differs from the recording at "
                f"character {start}: recorded {recorded[start : start + 60]!r}, got {got[start : start + 60]!r}"
            )

    def _difference(self, dialect: str, chain: str | None, said: tuple[_Said, ...]) -> str:
        spoken = sorted({each.dialect for each in self._exchanges})
        if dialect not in spoken:
            return f"the agent speaks {dialect}, the recording holds {', '.join(spoken)}"
        near = max(self._exchanges, key=lambda each: (each.dialect == dialect, *_nearness(each.said, said), -each.line))
        at = _common(near.said, said)
        recorded = str(near.said[at]) if at < len(near.said) else "the end of the history"
        got = str(said[at]) if at < len(said) else "the end of the history"
        if recorded == got:
            recorded, got = f"previous_response_id {near.chain}", f"previous_response_id {chain}"
        recorded, got = _cut_around(recorded, got)
        return f"no recorded request fits; nearest is line {near.line}, turn {at + 1}: recorded {recorded}; got {got}"


def _cut_around(first: str, second: str) -> tuple[str, str]:
    """Return both texts cut down to the surroundings of their first difference."""
    start = max(_common(first, second) - _SHOWN // 4, 0) if max(len(first), len(second)) > _SHOWN else 0
    return _cut(first, start), _cut(second, start)


def _cut(text: str, start: int) -> str:
    return ("…" if start else "") + text[start : start + _SHOWN] + ("…" if len(text) > start + _SHOWN else "")


def write_recording(rundir: RunDir, task: Task, agent_name: str, facts: Mapping[str, Any] | None = None) -> Path:
    """Write a rollout's completed exchanges, redacted as they are, as the recording of an agent on a task.

    `facts` (task digest, agent version, model …) become the first line. Raises: RecordError when none completed.
    """
    kept: list[bytes] = []
    histories: list[list[Any]] = [[]]  # by line from 1 on; the first line holds no exchange
    for record in sorted(read_records(rundir.llm), key=lambda each: int(each["metadata"]["started_seq"])):
        dialect = dialect_for(record["request"]["path"])
        response = record["response"] or {}
        if dialect is None or record["metadata"]["client_gone"]:
            # An answer that came too late would lead a replayed agent, which is never late, off its history.
            continue
        outcome = dialect.outcome(response.get("status_code"), response.get("body"), record["error"])
        if outcome.kind == "completed":
            request = {"method": "POST", "path": record["request"]["path"]}
            request.update(_continued(_slim(record["request"]["body"], dialect), dialect, histories))
            answer = {key: response[key] for key in ("status_code", "body")}
            kept.append(dumps({"request": request, "response": answer}))
    if not kept:
        raise RecordError(f"{rundir.llm}: holds no completed exchange to record")
    path = recording_path(task, agent_name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join([dumps({"recording": dict(facts or {})}), *kept, b""]))
    return path


def _slim(body: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return a request without what matching ignores and machines differ in: tool definitions and system prompts."""
    kept = {key: value for key, value in body.items() if key not in _NOT_MATCHED}
    if isinstance(kept.get(dialect.history), list):
        kept[dialect.history] = [each for each in kept[dialect.history] if not _is_system(each)]
    return kept


def _continued(body: dict[str, Any], dialect: Dialect, histories: list[list[Any]]) -> dict[str, Any]:
    """Return a request's body without the history that an earlier line holds, and that line's number.

    Otherwise a recording would hold each turn once for every turn after it.
    """
    key = dialect.history
    history: list[Any] = body[key] if isinstance(body.get(key), list) else []
    held = [
        (len(earlier), line)
        for line, earlier in enumerate(histories, 1)
        if earlier and history[: len(earlier)] == earlier
    ]
    histories.append(history)
    if not held:
        return {"body": body}
    length, line = max(held)
    return {"continues": line, "body": {**body, key: history[length:]}}


def _whole(request: Mapping[str, Any], dialect: Dialect, histories: dict[int, Any]) -> dict[str, Any]:
    """Return a request's body with the history of the line that it continues. Raises: KeyError, TypeError."""
    body: dict[str, Any] = request["body"]
    if "continues" in request:
        key = dialect.history
        body = {**body, key: [*histories[request["continues"]], *body[key]]}
    return body


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _facts(path: Path) -> dict[str, Any]:
    """Return what the first line of a recording says of it; empty when it says nothing."""
    facts = next(read_records(path), {}).get("recording")
    return facts if isinstance(facts, dict) else {}


def _read(path: Path) -> Iterable[_Recorded]:
    histories: dict[int, Any] = {}
    for number, record in enumerate(read_records(path), 1):
        if "recording" in record:
            continue
        try:
            request, response = record["request"], record["response"]
            dialect = dialect_for(request["path"])
            if dialect is None:
                raise RecordError(f"{path}:{number}: no model API has the path {request['path']!r}")
            asked = _whole(request, dialect, histories)
            histories[number] = asked.get(dialect.history)
            said, outputs = _said(dialect.request_turns(asked))
            chain, model = asked.get("previous_response_id"), str(asked.get("model") or path_model(request["path"]))
            status, body = response["status_code"], response["body"]
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}:{number}: not a recorded exchange ({error!r})") from None
        yield _Recorded(number, said, outputs, chain, dialect.name, model, status, body)


def _said(turns: Sequence[Turn]) -> tuple[tuple[_Said, ...], tuple[str, ...]]:
    """Return what must agree between two histories, and the tool outputs, which need not."""
    said: list[_Said] = []
    outputs: list[str] = []
    for turn in turns:
        if turn.role == "tool":
            said.append(_Said("tool", call_id=turn.tool_call_id))
            outputs.append(turn.text)
        elif turn.role != "system":
            # System prompts hold dates, paths and facts about the host.
            calls = tuple((call.id, call.name, _canonical(call.arguments)) for call in turn.tool_calls)
            text = turn.text if turn.role == "assistant" else _VOLATILE.sub("…", turn.text)
            said.append(_Said(turn.role, text.strip(), calls))
    return tuple(said), tuple(outputs)


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


def _nearness(recorded: tuple[_Said, ...], said: tuple[_Said, ...]) -> tuple[int, bool, int]:
    """Return how near two histories are: equal turns, whether there is one to compare with the next, and how alike."""
    common = _common(recorded, said)
    both = len(recorded) > common and len(said) > common
    alike = _common(str(recorded[common])[:_COMPARED], str(said[common])[:_COMPARED]) if both else 0
    return common, len(recorded) > common, alike


def _common(first: Sequence[object], second: Sequence[object]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


async def _each(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
