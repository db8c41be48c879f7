"""Run samples that do nothing in Inspect AI, to set their cost beside that of rollouts that do nothing.

`benchmarks.concurrency --inspect=DIRECTORY` calls this. Inspect AI is installed into an environment of its own at
DIRECTORY when there is none yet, and this file then runs there, as a program. A sample is one answer of Inspect's mock
model and a score: without a sandbox, or in its `local` sandbox, where scoring runs one command that writes a number and
reads that. What is measured is what more samples cost: the difference of two evaluations in one process, after a first
one that is not counted.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Samples beyond the few of the smaller evaluation.
SAMPLES = {"none": 400, "local": 200}
FEW = 50
_COMMAND = "echo 0 > reward.txt"
# What Inspect would read of its user's settings, or write beside them.
_PLACES = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")


def install(directory: Path) -> Path:
    """Install Inspect AI at a directory where it is not yet; return the interpreter there."""
    program = directory / "bin" / "python"
    if not (directory / "bin" / "inspect").exists():
        print(f"installing Inspect AI at {directory} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([program, "-m", "pip", "install", "--quiet", "inspect-ai"], check=True)
    return program


def measure(program: Path, sandbox: str, width: int, samples: int) -> dict[str, Any]:
    """Return the samples per second and the CPU milliseconds for each, measured in a process of their own."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as place:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("INSPECT_")}
        apart = {**kept, **dict.fromkeys(_PLACES, place), "PYTHONPATH": str(root)}
        command = [str(program), "-m", "benchmarks.inspect_samples", sandbox, str(width), str(samples)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=place, env=apart)
    return more(json.loads(done.stdout.splitlines()[-1]))


def more(found: dict[str, Any]) -> dict[str, Any]:
    """Return what each of the samples costs that the larger of two evaluations has more than the smaller."""
    (few, few_sec, few_cpu), (many, many_sec, many_cpu) = found["evaluations"]
    each_sec, each_cpu = ((large - small) / (many - few) for small, large in ((few_sec, many_sec), (few_cpu, many_cpu)))
    if each_sec <= 0 or each_cpu <= 0:
        sys.exit(f"{many} samples took no longer than {few}: {found}; ask for more with --rollouts")
    return {"per_second": 1 / each_sec, "cpu_ms": 1000 * each_cpu, "version": found["version"]}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _stub_tokenizer() -> None:
    """Count bytes as tokens: the vocabulary that Inspect estimates tokens with is a download."""
    import tiktoken
    from tiktoken import registry

    name = "o200k_base"
    ranks = {bytes([byte]): byte for byte in range(256)}
    registry.ENCODINGS[name] = tiktoken.Encoding(name, pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})


def _scored_by_command() -> Any:
    """Return a scorer that runs a command in the sandbox and reads the number that it wrote."""
    from inspect_ai.scorer import Score, mean, scorer  # type: ignore[import-not-found]
    from inspect_ai.util import sandbox  # type: ignore[import-not-found]

    def by_command() -> Any:
        async def score(state: Any, target: Any) -> Any:
            del state, target
            done = await sandbox().exec(["sh", "-c", _COMMAND])
            if not done.success:
                raise RuntimeError(done.stderr)
            return Score(value=float(await sandbox().read_file("reward.txt")))

        return score

    return scorer(metrics=[mean()])(by_command)()


def evaluate(sandbox: str, width: int, samples: int) -> tuple[int, float, float]:
    """Evaluate so many samples; return their number, the seconds and the CPU seconds."""
    from inspect_ai import Task, eval  # type: ignore[import-not-found]
    from inspect_ai.dataset import MemoryDataset, Sample  # type: ignore[import-not-found]
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as place:
        task = Task(
            dataset=MemoryDataset([Sample(id=number, input="Do nothing.", target="x") for number in range(samples)]),
            solver=generate(),
            scorer=_scored_by_command() if sandbox == "local" else includes(),
            sandbox="local" if sandbox == "local" else None,
        )
        began, before = time.perf_counter(), cpu_seconds()
        [log] = eval(task, model="mockllm/model", max_samples=width, log_dir=place, display="none")
        passed, used = time.perf_counter() - began, cpu_seconds() - before
        # Read back from the file that was written.
        scored = [sample for sample in log.samples or [] if sample.scores and not sample.error]
    if log.status != "success" or len(scored) != samples:
        sys.exit(f"{len(scored)} of {samples} samples were scored, the evaluation ended with {log.status}: {log.error}")
    return samples, passed, used


def main(sandbox: str, width: int, samples: int) -> None:
    """Print what two evaluations took, as JSON."""
    from importlib.metadata import version

    _stub_tokenizer()
    evaluate(sandbox, width, FEW)
    evaluations = [evaluate(sandbox, width, count) for count in (FEW, FEW + samples)]
    print(json.dumps({"version": version("inspect-ai"), "evaluations": evaluations}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
