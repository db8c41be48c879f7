"""Drive an export: find rollouts, read each on its own, write its rows, and count what was left out and why."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow import __version__, registry
from pytest_benchflow.errors import RecordError, UnsupportedError, UsageError
from pytest_benchflow.exporters._file import Line, RowFile, row_line
from pytest_benchflow.exporters._rollout import Skipped, conversations
from pytest_benchflow.records.find import find_rollouts, is_attempt
from pytest_benchflow.records.journal import write_json
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.training.messages import scrub

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import Conversation, Exporter


@dataclass(slots=True)
class Export:
    """What an export did; `skipped` and `exported` add up to `seen`."""

    format: str
    version: str  # of the format; "" when it has none
    out: Path
    seen: int = 0
    exported: int = 0  # rollouts that gave rows
    rows: int = 0
    side_rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # branches of rollouts whose other branches gave rows
    left_out: list[dict[str, Any]] = field(default_factory=list)
    redactions: int = 0
    trainable_redacted: int = 0  # rows
    tools_redefined: int = 0  # rows
    not_loaded_back: str | None = None

    def skip(self, path: Path, skip: Skipped) -> None:
        """Count a rollout that gives no row."""
        self.skipped[skip.reason] += 1
        self._leave_out(path, skip)

    def refuse(self, path: Path, skip: Skipped) -> None:
        """Count a branch that gives no row, of a rollout that gives others."""
        self.refused[skip.reason] += 1
        self._leave_out(path, skip)

    def _leave_out(self, path: Path, skip: Skipped) -> None:
        detail: str = Redactor().text(scrub(str(skip)))
        self.left_out.append({"rollout": scrub(str(path)), "reason": skip.reason, "detail": detail})

    def manifest(self) -> dict[str, Any]:
        """Return what the manifest says."""
        with self.out.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {
            "format": self.format,
            "format_version": self.version or None,
            "file": self.out.name,
            "sha256": digest,
            "plugin_version": __version__,
            "rollouts_seen": self.seen,
            "rollouts_exported": self.exported,
            "rows_written": self.rows,
            "side_rows": self.side_rows,
            "skipped": dict(sorted(self.skipped.items())),
            "branches_refused": dict(sorted(self.refused.items())),
            "redactions": self.redactions,
            "rows_with_redacted_training_text": self.trainable_redacted,
            "rows_with_redefined_tools": self.tools_redefined,
            "loaded_back": self.not_loaded_back is None,
            "left_out": self.left_out,
        }


def export(
    name: str,
    paths: Sequence[Path],
    out: Path,
    *,
    min_reward: float | None = None,
    side_calls: bool = False,
    manifest: Path | None = None,
    version: str | None = None,
) -> Export:
    """Write the rollouts at or below `paths` to `out` in a format, and say what was written.

    One rollout is in memory at a time. Raises: UsageError, RecordError when what was written does not load.
    """
    exporter = _exporter(name)
    done = Export(name, _version(name, exporter, version), out)
    rollouts = _rollouts(paths, [out, *([manifest] if manifest else [])])
    try:
        with RowFile(out, exporter) as file:
            for path in rollouts:
                done.seen += 1
                try:
                    made = _made(path, exporter, done.version, min_reward=min_reward, side_calls=side_calls)
                except Skipped as skip:
                    done.skip(path, skip)
                else:
                    _write(file, made, path, done)
            done.not_loaded_back = file.finish()
        if manifest is not None:
            write_json(manifest, done.manifest())
    except OSError as error:
        raise RecordError(f"{error.filename or out}: cannot be written ({error.strerror or error})") from None
    return done


def _exporter(name: str) -> Exporter:
    """Return the format of a name; a dash in it is an underscore in that of its file. Raises: UsageError."""
    shipped = {file.replace("_", "-"): file for file in registry.shipped("exporters")}
    known = shipped | {offered: offered for offered in registry.registered("exporters")}
    if name not in known:
        raise UsageError(f"no export format is named {name!r}; there are: {', '.join(sorted(known))}")
    exporter: Exporter = registry.load("exporters", known[name], "exporter")
    return exporter


def _version(name: str, exporter: Exporter, version: str | None) -> str:
    """Return the version of the format to write, the newest by default. Raises: UsageError."""
    if version is None:
        return exporter.versions[-1] if exporter.versions else ""
    if version not in exporter.versions:
        known = ", ".join(exporter.versions) or "none"
        raise UsageError(f"{name} has no version {version!r} that can be written; there are: {known}")
    return version


def _made(
    path: Path, exporter: Exporter, version: str, *, min_reward: float | None, side_calls: bool
) -> list[tuple[Conversation, list[Line] | Skipped]]:
    """Return the conversations of a rollout with their rows, or why they have none. Raises: Skipped: none has any."""
    try:
        found = conversations(path, min_reward=min_reward, side_calls=side_calls)
        made = [(conversation, _lines(conversation, exporter, version)) for conversation in found]
    except Skipped:
        raise
    except Exception as error:
        # Whatever a record holds costs its own rollout only.
        raise Skipped("unreadable_rollout", f"{type(error).__name__}: {error}") from error
    refused = [lines for _, lines in made if isinstance(lines, Skipped)]
    if len(refused) == len(made):
        raise refused[0] if refused else Skipped("no_branch", "No branch of the policy ends in a selected answer.")
    return made


def _lines(conversation: Conversation, exporter: Exporter, version: str) -> list[Line] | Skipped:
    try:
        return [row_line(row, exporter) for row in exporter.rows(conversation, version)]
    except UnsupportedError as error:
        reason, _, detail = str(error).partition(": ")
        return Skipped(reason, f"{conversation.role} branch {conversation.branch}: {detail}")


def _write(file: RowFile, made: Iterable[tuple[Conversation, list[Line] | Skipped]], path: Path, done: Export) -> None:
    """Write the rows of a rollout and count them. Raises: OSError."""
    done.exported += 1
    for conversation, lines in made:
        if isinstance(lines, Skipped):
            done.refuse(path, lines)
            continue
        for line in lines:
            file.add(line)
        done.rows += len(lines)
        done.side_rows += len(lines) * (conversation.role == "side")
        done.redactions += conversation.redactions
        done.trainable_redacted += len(lines) * conversation.trainable_redacted
        done.tools_redefined += len(lines) * bool(conversation.tools_redefined)


def _rollouts(paths: Sequence[Path], written: Sequence[Path]) -> list[Path]:
    """Return the rollouts to read, each once. Raises: UsageError."""
    rollouts: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path} is no directory; name a rollout, a job, or a directory of jobs")
        found = [] if is_attempt(path.resolve()) else find_rollouts(path)
        if not found:
            raise UsageError(f"{path} holds no rollout; name a rollout, a job, or a directory of jobs")
        rollouts |= {rollout.resolve(): rollout for rollout in found}
    for target in written:
        inside = next((r for place, r in rollouts.items() if target.resolve().is_relative_to(place)), None)
        if inside is not None:
            raise UsageError(f"{target} lies in the rollout {inside}, which an export leaves as it is; write elsewhere")
        if target.is_dir():
            raise UsageError(f"{target} is a directory; name a file to write")
        # A name that was mistyped must not become a directory.
        if not target.parent.is_dir():
            raise UsageError(
                f"{target.parent} is no directory, and {target.name} was to be written there; make it first"
            )
        # The finished file takes the place of what is there: a device would be gone, for everyone.
        if target.is_symlink() or (target.exists() and not target.is_file()):
            raise UsageError(f"{target} is a link, a pipe or a device, and an export replaces it; name a plain file")
    if len({target.resolve() for target in written}) < len(written):
        raise UsageError(f"{written[0]} is named for the rows and for the manifest; name two files")
    return list(rollouts.values())
