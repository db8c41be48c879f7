"""Check a program against a library of rollout cases.

    python -m tests.cases.check_cases [LIBRARY] [--command "pytest-benchflow"] [--only GLOB] [--jobs N] [-v]

LIBRARY is a directory whose sub-directories are cases (default: this one). Each case is copied to a temporary
directory, the program is run on the copy, and what it prints or writes is compared with the case's expected.json;
README.md lists its keys. One line is printed for each failing case, then `N passed, M failed`. Exit status: 0 when
every case passed, 1 when one failed, 2 on wrong use. The program is called as

    COMMAND review PATH --json [args]
    COMMAND review PATH --json --rebuild [args]
    COMMAND export prime-sft PATH --out FILE --manifest FILE [args]
    COMMAND rebuild PATH [args]                       (then results.jsonl is read)
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases.pins import (
    Json,
    manifest_problems,
    pin_problems,
    read_rows,
    row_faults,
    rows_problems,
    same,
    strict_json,
)

HERE = Path(__file__).resolve().parent
_REVIEW = "healthy verdict training_ready training_ready_reason_contains outcomes roles selected reasons tokens"
REVIEW_KEYS = {*_REVIEW.split(), "exchange_tokens", "findings_any", "warnings_any", "findings_none"}
_ROWS = "rows rows_contain rows_lack row_messages_roles messages_any messages_none tool_names tool_params"
ROW_KEYS = {*_ROWS.split(), "no_empty_user", "row_ready"}
EXPORT_KEYS = {"skipped", "skipped_total", "seen"}
META_KEYS = {"claim", "command", "args", "any_of", "also", "note", "summary", "rollouts"}
VERDICTS = ("pass", "fail", "normal_timeout", "unhealthy")


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    stdout: str
    stderr: str


# Runs the program with arguments in a directory.
Run = Callable[[Sequence[str], Path], Done]


def cases_of(library: Path, pattern: str = "*") -> list[Path]:
    """Return the directories of the cases whose name matches, sorted."""
    found = (file.parent for file in library.glob("*/expected.json"))
    return sorted(case for case in found if fnmatch.fnmatch(case.name, pattern))


def check_case(case: Path, run: Run) -> list[str]:
    """Return where a program differs from what a case expects."""
    try:
        spec = json.loads((case / "expected.json").read_text("utf-8"))
        bad = _spec_problems(case, spec, run)
        for number, more in enumerate(spec.get("also") or (), start=1):
            bad += [f"(also {number}: {more['command']}) {text}" for text in _spec_problems(case, more, run)]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return bad


def in_a_process(command: Sequence[str], timeout: float) -> Run:
    """Return what runs `command` with further arguments, each time in a process of its own."""

    def run(arguments: Sequence[str], place: Path) -> Done:
        done = subprocess.run([*command, *arguments], capture_output=True, timeout=timeout, cwd=place, check=False)
        return Done(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    return run


def _spec_problems(case: Path, spec: Json, run: Run) -> list[str]:
    unknown = spec.keys() - REVIEW_KEYS - ROW_KEYS - EXPORT_KEYS - META_KEYS
    if unknown:
        return [f"expected.json has unknown keys {sorted(unknown)}"]
    kind, further = str(spec["command"]), [str(argument) for argument in spec.get("args") or ()]
    with tempfile.TemporaryDirectory(prefix="case-") as place:
        name = "rollouts" if (case / "rollouts").is_dir() else "rollout"
        path, out = Path(place) / name, Path(place) / "out" / "rows.jsonl"
        shutil.copytree(case / name, path)
        out.parent.mkdir()
        lines = {
            "review": ["review", str(path), "--json"],
            "review --rebuild": ["review", str(path), "--json", "--rebuild"],
            "rebuild": ["rebuild", str(path)],
            "export prime-sft": ["export", "prime-sft", str(path), "--out", str(out), "--manifest", f"{out}.manifest"],
        }
        before = _snapshot(path)
        try:
            done = run([*lines[kind], *further], Path(place))
        except subprocess.TimeoutExpired as error:
            return [f"no answer in {error.timeout:.0f} s"]
        after = _snapshot(path)
        touched = sorted(file for file in before.keys() | after.keys() if before.get(file) != after.get(file))
        if kind == "rebuild":
            return _rebuild_problems(spec, path, touched)
        bad = [f"{kind} changed {touched}"] if touched else []
        return bad + (_export_problems(spec, out, done) if kind.startswith("export") else _review_problems(spec, done))


def _snapshot(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _rebuild_problems(spec: Json, path: Path, touched: list[str]) -> list[str]:
    bad = [f"rebuild changed {file}" for file in touched if not file.endswith("results.jsonl")]
    rows: list[Json] = []
    for file in sorted(path.rglob("results.jsonl")):
        found, problems = read_rows(file)
        rows += found
        bad += problems
    return bad + pin_problems(spec, lambda pins: rows_problems(pins, rows))


def _export_problems(spec: Json, out: Path, done: Done) -> list[str]:
    if not out.is_file():
        return [f"exit {done.code}, no --out file; {done.stderr.strip()[-500:]}"]
    rows, bad = read_rows(out)
    bad += [fault for number, row in enumerate(rows) for fault in row_faults(row, f"row {number}")]
    try:
        manifest = strict_json(Path(f"{out}.manifest").read_text("utf-8"))
    except (OSError, ValueError) as error:
        return [*bad, f"manifest: {error}"]
    return bad + pin_problems(spec, lambda pins: rows_problems(pins, rows) + manifest_problems(pins, manifest))


def _review_problems(spec: Json, done: Done) -> list[str]:
    only_unhealthy = spec.get("healthy") is False and not spec.keys() & (REVIEW_KEYS - {"healthy"} | {"rollouts"})
    try:
        document = strict_json(done.stdout)
        reports = document["rollouts"]
    except (ValueError, TypeError, KeyError) as error:
        # "Nothing to review here" is a fair answer where no more than healthy=false is pinned.
        fair = done.code == 2 and only_unhealthy
        return [] if fair else [f"exit {done.code}, no review on stdout ({error}); {done.stderr.strip()[-500:]}"]
    bad = []
    if done.code != (0 if document.get("healthy") else 1):
        bad.append(f"exit status {done.code} with healthy={document.get('healthy')}")
    bad += [fault for report in reports for fault in _report_faults(report)]
    for name, want in (spec.get("summary") or {}).items():
        got = (document.get("summary") or {}).get(name)
        bad += [] if same(want, got) else [f"summary.{name}: want {want}, got {got}"]
    if "rollouts" not in spec:
        if len(reports) != 1:
            return [*bad, f"{len(reports)} rollouts in the answer"]
        if document.get("healthy") != reports[0].get("healthy"):
            bad.append("overall healthy differs from the only rollout's")
        return bad + _pinned(spec, reports[0])
    for name, pins in spec["rollouts"].items():
        match = [report for report in reports if Path(str(report.get("root"))).name == name]
        found = _pinned(pins, match[0]) if len(match) == 1 else [f"{len(match)} reports"]
        bad += [f"[{name}] {text}" for text in found]
    if "healthy" in spec and not same(spec["healthy"], document.get("healthy")):
        bad.append(f"healthy: want {spec['healthy']}, got {document.get('healthy')}")
    return bad


def _pinned(spec: Json, report: Json) -> list[str]:
    return pin_problems(spec, lambda pins: _report_problems(pins, report))


def _report_problems(pins: Json, report: Json) -> list[str]:
    """Return where the review of one rollout differs from what is pinned."""
    exchanges = report.get("exchanges") or []
    found: Json = {key: report.get(key) for key in ("healthy", "verdict", "training_ready")}
    for key, field in (("outcomes", "outcome"), ("roles", "role"), ("exchange_tokens", "tokens")):
        found[key] = [exchange.get(field) for exchange in exchanges]
    found["selected"] = [exchange.get("index") for exchange in exchanges if exchange.get("selected") is True]
    bad = [_differ(key, pins[key], got) for key, got in found.items() if key in pins and not same(pins[key], got)]
    reasons = {str(exchange.get("index")): exchange.get("reason") for exchange in exchanges}
    tokens = report.get("tokens") or {}
    for key, wants, got in (("reasons", pins.get("reasons"), reasons), ("tokens", pins.get("tokens"), tokens)):
        for name, want in (wants or {}).items():
            bad += [] if same(want, got.get(name)) else [_differ(f"{key}[{name}]", want, got.get(name))]
    reason, pattern = report.get("training_ready_reason"), pins.get("training_ready_reason_contains")
    if pattern is not None and not (isinstance(reason, str) and re.search(pattern, reason, re.IGNORECASE)):
        bad.append(_differ("training_ready_reason", pattern, reason))
    return bad + _finding_problems(pins, report)


def _finding_problems(pins: Json, report: Json) -> list[str]:
    told = [
        (item.get("severity"), f"{item.get('check')}: {item.get('message')}") for item in report.get("findings") or ()
    ]
    texts = [text for severity, text in told if severity in ("error", "warning")]
    errors = [text for severity, text in told if severity == "error"]
    bad = []
    for key, where in (("findings_any", errors), ("warnings_any", texts)):
        for pattern in pins.get(key) or ():
            if not any(re.search(pattern, text, re.IGNORECASE) for text in where):
                bad.append(_differ(key, pattern, where))
    for pattern in pins.get("findings_none") or ():
        hits = [text for text in errors if re.search(pattern, text, re.IGNORECASE)]
        bad += [_differ("findings_none", pattern, hits)] if hits else []
    return bad


def _report_faults(report: Json) -> list[str]:
    """Return what breaks a rule that holds for the review of every rollout."""
    bad = [] if report.get("verdict") in VERDICTS else [f"verdict is {report.get('verdict')!r}"]
    if (report.get("verdict") == "unhealthy") == bool(report.get("healthy")):
        bad.append("verdict and healthy disagree")
    for item in report.get("findings") or ():
        if item.get("severity") not in ("error", "warning") or not isinstance(item.get("message"), str):
            bad.append(f"malformed finding {item!r}"[:160])
    ready, reason = report.get("training_ready"), report.get("training_ready_reason")
    if isinstance(ready, bool) and ready == bool(reason):
        bad.append(f"training_ready is {ready} with the reason {reason!r}")
    tokens = [(report.get("tokens") or {}).get(key) for key in ("selected", "excluded", "billed")]
    counts = [count for count in tokens if isinstance(count, int)]
    if len(counts) == len(tokens) and counts[0] + counts[1] != counts[2]:
        bad.append(f"tokens do not add up: {tokens}")
    for exchange in report.get("exchanges") or ():
        if exchange.get("selected") is True and exchange.get("outcome") != "completed":
            bad.append(f"exchange {exchange.get('index')} selected with outcome {exchange.get('outcome')}")
        if exchange.get("selected") is False and not exchange.get("reason"):
            bad.append(f"exchange {exchange.get('index')} not selected and no reason")
    return bad


def _differ(key: str, want: Any, got: Any) -> str:
    return f"{key}: want {json.dumps(want)}, got {json.dumps(got)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Check a program against a library of rollout cases.")
    parser.add_argument("library", nargs="?", type=Path, default=HERE)
    parser.add_argument("--command", default="pytest-benchflow", help="program to run (default: pytest-benchflow)")
    parser.add_argument("--only", default="*", metavar="GLOB", help="only cases whose name matches")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one call")
    parser.add_argument("-v", "--verbose", action="store_true", help="also name the cases that pass")
    options = parser.parse_args(arguments)
    cases = cases_of(options.library, options.only)
    if not cases:
        sys.stderr.write(f"no case in {options.library} matches {options.only!r}\n")
        return 2
    run = in_a_process(shlex.split(options.command), options.timeout)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for case, bad in zip(cases, pool.map(lambda case: check_case(case, run), cases), strict=True):
            failed += bool(bad)
            if bad or options.verbose:
                sys.stdout.write(f"FAIL {case.name}: {' | '.join(bad)}\n" if bad else f"ok   {case.name}\n")
    sys.stdout.write(f"{len(cases) - failed} passed, {failed} failed\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
