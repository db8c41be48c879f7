"""Write one rollout: its two logs line by line, then result.json, config.json and the trainer row."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TextIO

from benchmarks.corpus.plan import Options, Outcome, Spec
from benchmarks.corpus.protocols import (
    MODELS,
    PATHS,
    chat_assistant,
    history_items,
    request_head,
    response_body,
    trainer_items,
    user_item,
)
from benchmarks.corpus.results import History, RowParts, Step, open_object, write_row
from benchmarks.corpus.text import Text
from benchmarks.corpus.turns import Turn, make_tools, make_turn

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.corpus.turns import Json

_EPOCH = datetime(2026, 1, 5, 9, 0, 0)
_METADATA: Json = {"provider": "litellm", "agent": "bench-agent", "call_purpose": "agent"}


def write_rollout(root: Path, spec: Spec, options: Options) -> Outcome:
    directory = root / spec.name
    llm = directory / "trajectory" / "llm_trajectory.jsonl"
    acp = directory / "trajectory" / "acp_trajectory.jsonl"
    row = directory / "results.jsonl"
    llm.parent.mkdir(parents=True, exist_ok=True)
    with llm.open("w", encoding="utf-8") as exchanges, acp.open("w", encoding="utf-8") as events:
        session = _Session(spec, options, exchanges, events)
        session.run()
    reward = float(session.rng.random() < 0.6) if not spec.incomplete else 0.0
    result = _result(spec, session, reward)
    (directory / "result.json").write_text(json.dumps(result, indent=2))
    (directory / "config.json").write_text(json.dumps(_config(spec, options), indent=2))
    if options.results == "builtin":
        with row.open("w", encoding="utf-8") as out:
            write_row(out, spec, result, session.row_parts(reward))
    _corrupt(spec.corruption, row, llm, acp)
    return Outcome(
        directory=spec.name,
        protocol=spec.protocol,
        healthy=spec.corruption is None,
        training_ready=not spec.incomplete,
        corruption=spec.corruption,
        exchanges=session.lines,
        counted_exchanges=[step.index for step in session.steps],
        bytes={path.name: path.stat().st_size for path in (llm, acp, row) if path.exists()},
    )


class _Session:
    """An agent at work: what it has said so far, and what was counted."""

    def __init__(self, spec: Spec, options: Options, llm: TextIO, acp: TextIO) -> None:
        self.rng = random.Random(f"{options.seed}/{spec.index}")
        self._spec, self._options, self._llm, self._acp = spec, options, llm, acp
        self._text = Text(self.rng)
        self.tools = make_tools(self._text, options.tools)
        system, self._prompt = self._text.prose(options.system_bytes), self._text.prose(600)
        head, self._key, start = request_head(spec.protocol, system, self.tools)
        self._head = open_object(head)
        self._history = History(*start, user_item(spec.protocol, self._prompt))
        self._user: Json = {"role": "user", "content": self._prompt}
        self._trainer_history = History({"role": "system", "content": system}, self._user)
        self._completion = History()  # what follows the user's message in the trainer row
        self._reports_usage = spec.corruption != "llm-no-usage"
        self.steps: list[Step] = []
        self.totals = {"input": 0, "output": 0, "calls": 0}
        self.clock = float(spec.index * 60)
        self.lines = 0

    def run(self) -> None:
        self._acp.write(json.dumps({"type": "user_message", "text": self._prompt}) + "\n")
        turns = max(1, self._spec.exchanges // 2) if self._spec.incomplete else self._spec.exchanges
        for number in range(turns):
            self._turn(number, last=number == turns - 1)

    def row_parts(self, reward: float) -> RowParts:
        return RowParts(
            prompt=json.dumps([self._user]),
            completion=self._completion.array,
            history=self._trainer_history.text,
            steps=self.steps,
            metadata=_METADATA,
            tools=self.tools,
            reward=reward,
        )

    def _turn(self, number: int, *, last: bool) -> None:
        protocol = self._spec.protocol
        turn = make_turn(self._text, self.tools, f"{number:05x}", self._options.tool_bytes)
        if last and not self._spec.incomplete:
            turn = Turn(text=turn.text, calls=())
        answer = json.dumps([chat_assistant(turn)])
        tokens = (len(self._history.text) + len(self._head)) // 4, max(1, (len(answer) - 2) // 4)
        usage = tokens if self._reports_usage else None
        response_id = f"{self.rng.getrandbits(96):024x}"
        if self.rng.random() < self._options.retry_fraction:
            self._exchange(*self._first_answer(number, usage))
        body = self._exchange(200, response_body(protocol, turn, response_id, usage))
        self.totals["input"] += usage[0] if usage else 0
        self.totals["output"] += usage[1] if usage else 0
        self.totals["calls"] += len(turn.calls)
        self.steps.append(Step(self.lines - 1, len(self._trainer_history.text), answer, body))
        for event in _events(self._text, turn):
            self._acp.write(json.dumps(event) + "\n")
        if last:
            self._completion.extend([chat_assistant(turn)])
            return
        items = trainer_items(protocol, turn)
        self._history.extend(history_items(protocol, turn))
        self._trainer_history.extend(items)
        self._completion.extend(items)

    def _exchange(self, status: int, body: Json) -> str:
        """Write one line, whose request is the history so far, and return the encoded body of its response."""
        seconds = round(self.rng.uniform(0.8, 9.0), 3)
        encoded = json.dumps(body)
        request = open_object({"method": "POST", "path": PATHS[self._spec.protocol], "headers": {}})
        self._llm.write(
            f'{{"request": {request}"timestamp": "{_stamp(self.clock)}", '
            f'"body": {self._head}"{self._key}": {self._history.array}}}}}, '
            f'"response": {{"timestamp": "{_stamp(self.clock + seconds)}", '
            f'"status_code": {status}, "headers": {{}}, "body": {encoded}}}, '
            f'"duration_ms": {round(seconds * 1000, 1)}, '
            f'"metadata": {json.dumps(_METADATA)}}}\n'
        )
        self.clock += seconds
        self.lines += 1
        return encoded

    def _first_answer(self, number: int, usage: tuple[int, int] | None) -> tuple[int, Json]:
        """Return (status, body) of a retried exchange's answer that does not count."""
        kinds = ("error", "unused", "incomplete")
        kind = self.rng.choice(kinds if self._spec.protocol == "responses" else kinds[:2])
        if kind == "error":
            status = self.rng.choice((429, 500))
            name = "rate_limit_error" if status == 429 else "api_error"
            return status, {"error": {"type": name, "message": self._text.prose(80)}}
        turn = make_turn(self._text, self.tools, f"r{number:05x}", 1)
        body = response_body(self._spec.protocol, turn, f"{self.rng.getrandbits(96):024x}", usage)
        if kind == "incomplete":
            body["status"] = "incomplete"
            body["incomplete_details"] = {"reason": "max_output_tokens"}
            body["output"] = body["output"][:1]
        return 200, body


def _stamp(seconds: float) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()


def _events(text: Text, turn: Turn) -> list[Json]:
    events: list[Json] = []
    if text.rng.random() < 0.5:
        events.append({"type": "agent_thought", "text": text.prose(120)})
    events.append({"type": "agent_message", "text": turn.text})
    events += [
        {
            "type": "tool_call",
            "tool_call_id": call.id,
            "kind": "execute",
            "title": f"{call.name}: {call.arguments['command']}",
            "status": "completed",
            "content": [{"type": "content", "content": {"type": "text", "text": call.output}}],
        }
        for call in turn.calls
    ]
    return events


def _config(spec: Spec, options: Options) -> Json:
    return {
        "task_path": spec.task,
        "agent": "bench-agent",
        "model": MODELS[spec.protocol],
        "environment": "none",
        "timeout_sec": 3600,
        "concurrency": 1,
        "started_at": _stamp(spec.index * 60),
        "generator": {"name": "gen_corpus", "seed": options.seed},
    }


def _result(spec: Spec, session: _Session, reward: float) -> Json:
    totals = session.totals
    started = spec.index * 60
    return {
        "task_name": spec.task,
        "rollout_name": spec.name,
        "rewards": {"reward": reward} if spec.corruption != "result-no-reward" else None,
        "agent": "bench-agent",
        "agent_name": "bench-agent",
        "model": MODELS[spec.protocol],
        "n_tool_calls": totals["calls"],
        "n_prompts": 1,
        "agent_result": {
            "n_tool_calls": totals["calls"],
            "n_prompts": 1,
            "n_input_tokens": totals["input"],
            "n_output_tokens": totals["output"],
            "total_tokens": totals["input"] + totals["output"],
            "cost_usd": None,
            "usage_source": "provider",
        },
        "error": "agent timed out after 3600s" if spec.incomplete else None,
        "error_category": "timeout" if spec.incomplete else None,
        "verifier_error": None,
        "verifier_error_category": None,
        "export_error": None,
        "partial_trajectory": spec.incomplete,
        "trajectory_source": "acp",
        "started_at": _stamp(started),
        "finished_at": _stamp(session.clock + 5),
        "timing": {"total": round(session.clock + 5 - started, 1)},
    }


def _corrupt(kind: str | None, row: Path, llm: Path, acp: Path) -> None:
    """Damage the files; the other kinds are written wrong in the first place."""
    if kind == "llm-truncated-line":
        with llm.open("r+b") as handle:
            handle.truncate(llm.stat().st_size - 40)
    elif kind == "llm-missing":
        llm.unlink()
    elif kind == "results-missing":
        row.unlink(missing_ok=True)
    elif kind == "acp-empty":
        acp.write_text("")
