"""Print one rollout for a person to read, from what it left on disk; nothing in it reaches the terminal as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._match import recorded_dialect
from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.files import strange_files
from pytest_benchflow.records.find import find_rollouts, is_rollout
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.records.values import mapping
from pytest_benchflow.report.failure import finding_lines
from pytest_benchflow.report.summary import evidence_line, summarize
from pytest_benchflow.report.text import count_text, one_line, printable, reward_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Dialect

_PREVIEW = 160
_LISTED = 20


def show_rollout(path: Path) -> Iterator[str]:
    """Yield the lines that tell a rollout: verdict, evidence, steps, findings, files; of a job one for each rollout.

    A record that cannot be read is named in its place. Raises: UsageError when neither `path` is a rollout's directory
    nor one is below it, RecordError when a file of the rollout is not its own.
    """
    rollout = Rollout(path)
    if path.is_dir() and is_rollout(path):
        for strange in strange_files(rollout.dir):
            raise RecordError(f"{path}: not read, as {strange}")
    elif path.is_dir() and find_rollouts(path):
        yield from _list(path)
        return
    if not rollout.dir.config.is_file() and not rollout.dir.result.is_file():
        raise UsageError(_no_rollout(path))
    yield from _guarded("result.json", _head(rollout))
    yield from _section("steps", _guarded("llm_trajectory.jsonl", _steps(rollout)))
    yield from _section("findings", _guarded("result.json", iter(finding_lines_of(rollout))))
    yield from _section("files", _files(path))


def _no_rollout(path: Path) -> str:
    """Say that a path is no rollout, and list those below the nearest directory above it."""
    place = next((each for each in (path, *path.parents) if each.is_dir()), path)
    found = [file.parent for pattern in ("*", "*/*") for file in sorted(place.glob(f"{pattern}/config.json"))]
    said = f"{path} is no rollout" if path.exists() else f"{path} does not exist"
    if not found:
        return f"{said}, and none is below {place}; name a directory such as jobs/JOB/TASK__AGENT__MODEL__SKILLS__N"
    shown = "".join(f"\n  {each}" for each in found[:_LISTED])
    more = f"\n  and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"{said}; name one of:{shown}{more}"


def _list(path: Path) -> Iterator[str]:
    """Yield a line for each rollout below a directory, by the verdict that it keeps, and what they come to."""
    told = []
    for root in find_rollouts(path):
        strange = strange_files(RunDir(root))
        try:
            summary = summarize(Rollout(root), str(root))
        except (RecordError, OSError) as error:
            yield f"{printable(root)}: cannot be read: {one_line(strange[0] if strange else error)}"
            continue
        told.append(summary)
        kind = f" ({one_line(summary.category)})" if summary.category else ""
        reward = f", reward {reward_text(summary.reward)}" if summary.healthy else ""
        yield f"{printable(root)}: {summary.outcome}{kind}{reward}"
    if told:
        yield ""
        yield evidence_line(told)


def finding_lines_of(rollout: Rollout) -> Iterator[str]:
    """Yield the findings of the rollout's checks."""
    yield from finding_lines(rollout.result)


def unreadable(path: Path) -> list[str]:
    """Return what cannot be read of a rollout's records; empty when it is whole, or no rollout but what holds some."""
    if not is_rollout(path):
        return []
    rollout, faults = Rollout(path), []
    for read in (lambda: rollout.config, lambda: rollout.result, lambda: rollout.exchanges, lambda: rollout.events):
        try:
            read()
        except RecordError as error:
            faults.append(printable(error))
    return faults


def _head(rollout: Rollout) -> Iterator[str]:
    summary, result = summarize(rollout, str(rollout.path)), rollout.result
    names = [summary.task, summary.agent, *([summary.model] if summary.calls_model else []), summary.skills]
    yield " · ".join(one_line(name) for name in names)
    yield f"{summary.outcome}{f' ({one_line(summary.category)})' if summary.category else ''}"
    yield evidence_line([summary])
    rewards = _rewards(result.get("rewards"))
    yield f"reward: {rewards if summary.healthy else f'not counted: {summary.outcome} (the verifier gave {rewards})'}"
    if summary.phases:
        yield "time: " + " · ".join(f"{one_line(name)} {seconds_text(seconds)}" for name, seconds in summary.phases)
    for name in ("error", "verifier_error", "export_error"):
        if result.get(name):
            kind = result.get(f"{name}_category")
            yield f"{name.replace('_', ' ')}{f' ({one_line(kind)})' if kind else ''}: {printable(result[name])}"
    for warning in result.get("warnings") or []:
        yield f"warning: {one_line(warning)}"


def _rewards(rewards: Any) -> str:
    if not isinstance(rewards, dict) or not rewards:
        return "none"
    numbers = {name: float(value) if isinstance(value, int | float) else None for name, value in rewards.items()}
    return ", ".join(
        reward_text(number) if name == "reward" else f"{one_line(name)} {reward_text(number)}"
        for name, number in numbers.items()
    )


def _steps(rollout: Rollout) -> Iterator[str]:
    """Yield a line or more for each exchange with the model; read one at a time, as a trajectory may be large."""
    if not rollout.dir.llm.is_file():
        return
    for index, exchange in enumerate(read_records(rollout.dir.llm)):
        request, response = mapping(exchange.get("request")), mapping(exchange.get("response"))
        dialect = recorded_dialect(str(request.get("path")))
        status, body, error = response.get("status_code"), response.get("body"), exchange.get("error")
        if dialect is None:
            yield f"{index:>3}  {one_line(request.get('path'))}: HTTP {one_line(status)}"
            continue
        outcome = dialect.outcome(status, body, error)
        usage = dialect.usage(body)
        reason = f" ({one_line(outcome.reason, limit=_PREVIEW)})" if outcome.reason else ""
        yield f"{index:>3}  {outcome.kind}{reason} · {count_text(usage.billed if usage else None)} tokens"
        yield from (f"     {line}" for line in _said(dialect, body))


def _said(dialect: Dialect, body: Any) -> Iterator[str]:
    turn = dialect.response_turn(body)
    if turn is None:
        return
    if turn.text.strip():
        yield f'says "{one_line(turn.text, limit=_PREVIEW)}"'
    for call in turn.tool_calls:
        yield f"calls {one_line(call.name)} {one_line(call.arguments, limit=_PREVIEW)}"


def _files(path: Path) -> Iterator[str]:
    """Yield each file with its size; earlier attempts as one line."""
    for file in sorted(path.rglob("*")):
        relative = file.relative_to(path)
        if file.is_symlink() or not file.is_file() or relative.parts[0] == "attempts" or relative.name == ".lock":
            continue
        yield f"{file.stat().st_size:>12,}  {printable(relative)}"
    attempts = path / "attempts"
    if attempts.is_dir():
        yield f"earlier attempts: {len(list(attempts.iterdir()))}, under {printable(attempts)}"


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield ""
        yield title
        yield from (f"  {line}" for line in found)


def _guarded(name: str, lines: Iterator[str]) -> Iterator[str]:
    try:
        yield from lines
    except RecordError as error:
        yield f"{name} cannot be read: {printable(error)}"
