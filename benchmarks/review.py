"""Measure what reviewing, rebuilding, exporting and recording cost, as ratios that do not depend on the machine.

    python -m benchmarks.review [--large] [--stages] [--corpora DIR] [--repeats N]

CPU time is set against what `orjson.loads` alone takes for the same lines, of llm_trajectory.jsonl and results.jsonl,
once they are read: measured by turns in one process, the best of several. `--large` adds a rollout of 1,000 exchanges
(3.6 GB on disk), `--stages` shows what each stage and check of a review costs.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from benchmarks.agreement import disagreements
from benchmarks.corpus.plan import Options
from benchmarks.corpus.write import read_corpus, write_corpus
from benchmarks.stages import stage_costs
from pytest_benchflow.exporters._base import export
from pytest_benchflow.proxy._recorder import Recorder, parse_body
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.report.review import checks_for, review_rollout
from pytest_benchflow.training.row import build_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_benchflow.checks._check import Check

MANY, LONG, LARGE = "200 x 30", ("1 x 100", "1 x 300"), "1 x 1000"
MIXED = "60 x 30 mixed"
CORPORA = {
    MANY: Options(rollouts=200),
    MIXED: Options(rollouts=60, protocol="mixed", retry_fraction=0.1, incomplete_fraction=0.05),
    LONG[0]: Options(rollouts=1, exchanges=100),
    LONG[1]: Options(rollouts=1, exchanges=300),
    LARGE: Options(rollouts=1, exchanges=1000),
}
DAMAGED = Options(
    rollouts=300,
    exchanges=10,
    tool_bytes=300,
    system_bytes=400,
    tools=4,
    protocol="mixed",
    retry_fraction=0.1,
    incomplete_fraction=0.05,
    corrupt_fraction=0.25,
)
# What the columns may be at most, in multiples of the parse.
LIMITS = {"review": 1.3, "row": 3.0, "prime-sft": 3.0}
EXPONENT_LIMIT = 1.05
RECORDER_LIMIT = 3.0
MIB = 1 << 20
SHOWN_STAGES = 20
# The peak of a process comes from /proc, as the one that getrusage tells starts with that of the parent process.
ALONE = """
import sys
from pathlib import Path
from pytest_benchflow.report.review import checks_for, review_rollout
checks = checks_for()
healthy = len(sys.argv) < 2 or review_rollout(Path(sys.argv[1]), checks, rebuild=sys.argv[2] == "rebuild").healthy
print(healthy, Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def logs_of(root: Path) -> tuple[Path, Path]:
    return RunDir(root).llm, RunDir(root).row


def rollouts_in(corpus: Path) -> list[Path]:
    return [corpus / outcome.directory for outcome in read_corpus(corpus)[1]]


def cpu_of(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def parse_cpu(root: Path) -> float:
    """Return the CPU seconds that parsing all lines of a rollout takes, reading them left out."""
    total = 0.0
    for path in logs_of(root):
        with path.open("rb", buffering=MIB) as lines:
            for line in lines:
                began = time.process_time()
                orjson.loads(line)
                total += time.process_time() - began
    return total


def review_one(root: Path, checks: Mapping[str, Check]) -> None:
    review = review_rollout(root, checks)
    if not review.healthy:
        # A review that ends early is no measure.
        sys.exit(f"{root} is not healthy: {review.report.errors[0].message}")


def build_one(root: Path) -> None:
    rundir = RunDir(root)
    row = build_row(rundir, result=read_json(rundir.result), config=read_json(rundir.config))
    with Path(os.devnull).open("wb") as out:
        out.writelines(row.chunks())


def export_all(roots: Sequence[Path]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        done = export("prime-sft", roots, Path(scratch) / "rows.jsonl")
    if not done.rows:
        sys.exit(f"no row was exported: {done.left_out[:1]}")


def measure(roots: Sequence[Path], repeats: int) -> dict[str, float]:
    """Return the CPU seconds of each kind of work over all rollouts, done by turns: of each rollout the best."""
    checks = checks_for()
    work: dict[str, Callable[[Path], float]] = {
        "parse": parse_cpu,
        "review": lambda root: cpu_of(lambda: review_one(root, checks)),
        "row": lambda root: cpu_of(lambda: build_one(root)),
    }
    best = {name: [math.inf] * len(roots) for name in work}
    exports = []
    for _ in range(repeats):
        for number, root in enumerate(roots):
            for name, measured in work.items():
                best[name][number] = min(best[name][number], measured(root))
        exports.append(cpu_of(lambda: export_all(roots)))
    return {name: sum(seconds) for name, seconds in best.items()} | {"prime-sft": min(exports)}


def report_ratios(corpora: Mapping[str, Path], repeats: int) -> None:
    """Print what each kind of work costs, and how a review's cost grows with the length of a rollout."""
    print("CPU as a multiple of the parse\n")
    limits = "".join(f"{f'{name} <{limit:g}':>16}" for name, limit in LIMITS.items())
    print(f"{'rollouts x exchanges':<22}{'MB':>8}{'parse, ms':>12}{limits}")
    curve: list[tuple[float, float]] = []
    for name, corpus in corpora.items():
        roots = rollouts_in(corpus)
        size = sum(path.stat().st_size for root in roots for path in logs_of(root))
        best = measure(roots, repeats)
        ratios = "".join(f"{_judged(best[kind] / best['parse'], limit):>16}" for kind, limit in LIMITS.items())
        print(f"{name:<22}{size / 1e6:>8.0f}{1000 * best['parse']:>12.1f}{ratios}", flush=True)
        if len(roots) == 1:
            curve.append((math.log(size), math.log(best["review"])))
    exponent = _slope(curve)
    print(f"\na review's CPU grows with the bytes to the power of {_judged(exponent, EXPONENT_LIMIT)}")


def _judged(value: float, limit: float) -> str:
    return f"{value:.2f}" if value <= limit else f"{value:.2f} OVER"


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points, by least squares."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def report_recorder(corpus: Path, sessions: int = 10) -> None:
    """Print what recording the 10th and the 100th exchange costs."""
    (root,) = rollouts_in(corpus)
    bodies = list(_bodies(RunDir(root).llm))
    best = [min(seconds) for seconds in zip(*(_record(bodies) for _ in range(sessions)), strict=True)]
    tenth, hundredth = best[9], best[99]
    sizes = [len(request) + len(response) for request, response in (bodies[9], bodies[99])]
    beyond = hundredth / tenth / (sizes[1] / sizes[0])
    print("\nrecorder, without HTTP and disk\n")
    for name, size, seconds in (("10th exchange", sizes[0], tenth), ("100th exchange", sizes[1], hundredth)):
        print(f"{name:<22}{size / 1000:>8.0f} kB{1e6 * seconds:>10.0f} us")
    print(f"{'growth beyond bytes':<22}{_judged(beyond, RECORDER_LIMIT):>11}")


def _bodies(log: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the bodies of each request and response, as they were sent."""
    with log.open("rb") as lines:
        for line in lines:
            record = orjson.loads(line)
            yield orjson.dumps(record["request"]["body"]), orjson.dumps(record["response"]["body"])


def _record(bodies: Sequence[tuple[bytes, bytes]]) -> list[float]:
    """Record a session and return the CPU seconds of each exchange."""
    memory = Path("/dev/shm")  # noqa: S108 - a file system in memory, where there is one
    found: list[float] = []
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        recorder = Recorder(RunDir(Path(scratch)), Redactor(["invented-secret-of-the-benchmark"]))
        for request, response in bodies:
            began = time.process_time()
            exchange = recorder.receive("POST", "/v1/chat/completions")
            recorder.begin(exchange, request, parse_body(request)[1])
            exchange.status, exchange.answer = 200, parse_body(response)[1] or b"null"
            recorder.end(exchange)
            found.append(time.process_time() - began)
        recorder.close()
    return found


def report_memory(corpora: Mapping[str, Path]) -> None:
    """Print the peak memory of a review in a process of its own, with and without reading results.jsonl."""
    print("\npeak memory of a review, MiB\n")
    print(f"{'imports alone':<22}{'':>24}{'':>12}{_peak():>8.0f}")
    print(f"{'':<22}{'read':>24}{'longest':>12}{'peak':>8}{'limit':>8}")
    for name, corpus in corpora.items():
        (root,) = rollouts_in(corpus)
        llm, row = (_longest_line(path) / MIB for path in logs_of(root))
        for how, read, longest, limit in (
            ("rebuild", "llm_trajectory.jsonl", llm, 64 + 4 * llm),
            ("review", "and results.jsonl", row, max(64 + 4 * llm, 1.2 * row)),
        ):
            peak = _peak(str(root), how)
            over = " OVER" if peak > limit else ""
            print(f"{name:<22}{read:>24}{longest:>12.1f}{peak:>8.0f}{limit:>8.0f}{over}", flush=True)


def _peak(*arguments: str) -> float:
    """Return the peak memory in MiB of a process that reviews a rollout, or that only could."""
    done = subprocess.run([sys.executable, "-c", ALONE, *arguments], capture_output=True, text=True, check=True)
    healthy, kib = done.stdout.split()
    if healthy != "True":
        sys.exit(f"{arguments} is not healthy")
    return int(kib) / 1024


def _longest_line(path: Path) -> int:
    with path.open("rb", buffering=MIB) as lines:
        return max(map(len, lines))


def report_agreement(corpus: Path) -> int:
    """Print where a review and corpus.json differ, and return in how many ways."""
    found = disagreements(corpus)
    print(f"\nagreement: {len(found)} differences on {len(rollouts_in(corpus))} rollouts, a quarter of them damaged")
    for line in found:
        print(f"  {line}")
    return len(found)


def report_stages(corpus: Path, repeats: int) -> None:
    """Print what the dearest stages and checks of a review cost."""
    roots = rollouts_in(corpus)
    parse = sum(min(parse_cpu(root) for _ in range(repeats)) for root in roots)
    costs = sorted(stage_costs(roots, repeats).items(), key=lambda cost: -cost[1])
    rest = costs[SHOWN_STAGES:]
    print("\nstages and checks of a review, as a multiple of the parse\n")
    for name, seconds in (*costs[:SHOWN_STAGES], (f"{len(rest)} others", sum(seconds for _, seconds in rest))):
        print(f"{name:<40}{seconds / parse:>8.3f}{1e6 * seconds / len(roots):>10.0f} us a rollout")


def prepared(place: Path, name: str, options: Options) -> Path:
    """Return the corpus of a name below `place`, written where it is not there yet."""
    corpus = place / name.replace(" ", "-")
    if not (corpus / "corpus.json").is_file() or read_corpus(corpus)[0] != options:
        write_corpus(corpus, options)
    return corpus


def main(options: argparse.Namespace) -> int:
    """Measure and print; return 1 when a review does not agree with what a corpus says of itself."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, orjson {orjson.__version__}\n")
    names = [name for name in CORPORA if options.large or name != LARGE]
    with tempfile.TemporaryDirectory() as scratch:
        place: Path = options.corpora or Path(scratch)
        corpora = {name: prepared(place, name, CORPORA[name]) for name in names}
        report_ratios(corpora, options.repeats)
        report_recorder(corpora[LONG[0]])
        report_memory({name: corpora[name] for name in names if name in (*LONG[1:], LARGE)})
        if options.stages:
            report_stages(corpora[MANY], options.repeats)
        return int(report_agreement(prepared(place, "damaged", DAMAGED)) > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what reviewing, rebuilding, exporting and recording cost")
    parser.add_argument("--large", action="store_true", help="also a rollout of 1,000 exchanges: 3.6 GB on disk")
    parser.add_argument("--stages", action="store_true", help="show what each stage and check of a review costs")
    parser.add_argument("--corpora", type=Path, metavar="DIR", help="keep the corpora there, and use those it has")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="take the best of so many (default: 3)")
    sys.exit(main(parser.parse_args()))
