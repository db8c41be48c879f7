"""Keep what a person or another program thinks of a rollout, bound to the raw trace that they read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.files import write_whole
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.values import now

if TYPE_CHECKING:
    from pytest_benchflow.records.rundir import RunDir

VERDICTS = ("publishable", "quarantine", "not-publishable")
_BLOCK = 1 << 20
_TEXTS = ("verdict", "by", "note", "at", "trace_sha256")


@dataclass(frozen=True, slots=True)
class Audit:
    """A semantic verdict on a rollout; `void` says why it no longer stands, None while it does."""

    verdict: str | None
    by: str | None
    note: str | None
    at: str | None
    void: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the audit as a review prints it."""
        return {"verdict": self.verdict, "by": self.by, "note": self.note, "at": self.at, "void": self.void}


def write_audit(rundir: RunDir, *, verdict: str, by: str, note: str) -> Audit:
    """Write audit.json for the trace as it is now, in place of an earlier one.

    Raises: RecordError when there is no trace to judge, or the disk refuses.
    """
    if not rundir.llm.is_file() and not rundir.acp.is_file():
        raise RecordError(f"{rundir.path}: no raw trace is here: an audit is bound to trajectory/*.jsonl")
    audit = Audit(verdict, by, note, now())
    record = {"verdict": verdict, "by": by, "note": note, "at": audit.at, "trace_sha256": trace_digest(rundir)}
    try:
        write_whole(rundir.audit, [orjson.dumps(record, option=orjson.OPT_INDENT_2), b"\n"])
    except OSError as error:
        raise RecordError(f"{rundir.audit}: cannot be written ({error.strerror})") from None
    return audit


def read_audit(rundir: RunDir) -> Audit | None:
    """Return the audit of a rollout, void where it does not fit the trace; None when there is none."""
    if not rundir.audit.exists():
        return None
    try:
        record = read_json(rundir.audit)
    except RecordError as error:
        return Audit(None, None, None, None, void=str(error))
    told = {name: value for name in _TEXTS if isinstance(value := record.get(name), str)}
    return Audit(told.get("verdict"), told.get("by"), told.get("note"), told.get("at"), _fault(rundir, told))


def trace_digest(rundir: RunDir) -> str:
    """Return the SHA-256 of both raw traces as hexadecimal digits; a missing one counts as such."""
    whole = hashlib.sha256()
    for path in (rundir.llm, rundir.acp):
        part = hashlib.sha256()
        if path.is_file():
            with path.open("rb") as file:
                while block := file.read(_BLOCK):
                    part.update(block)
        # Of each file its own digest, so that no byte can move from one to the other unseen.
        whole.update(f"{path.name} {part.hexdigest() if path.is_file() else 'missing'}\n".encode())
    return whole.hexdigest()


def _fault(rundir: RunDir, told: dict[str, str]) -> str | None:
    missing = [name for name in ("verdict", "by", "trace_sha256") if not told.get(name)]
    if missing:
        return f"audit.json has no {missing[0]}"
    if told["verdict"] not in VERDICTS:
        return f"audit.json has the verdict {told['verdict']!r}; it takes one of: {', '.join(VERDICTS)}"
    return None if told["trace_sha256"] == trace_digest(rundir) else "the raw trace has changed since"
