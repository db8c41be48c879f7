"""--benchflow-retries: a fault of the run is tried again and each attempt stays; what the agent did never is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

ASKED = ("tasks", "-m", "rollout", "--benchflow-job-name=ramp")
WORKERS = pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])

# A sandbox that cannot be made as often as a file says, and a verifier that dies as often as another one does.
FLAKY = """
from pathlib import Path

from pytest_benchflow.contracts import ExecResult
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes.local import LocalBackend

HERE = Path(__file__).parent


def strikes(name):
    file = HERE / name
    left = int(file.read_text()) if file.exists() else 0
    file.write_text(str(max(0, left - 1)))
    return left > 0


class Flaky(LocalBackend):
    name = "flaky"

    async def create(self, spec):
        if strikes("sandboxes"):
            raise SandboxError("an invented fault")
        sandbox = await super().create(spec)
        run = sandbox.exec

        async def exec(argv, **options):
            if argv[-1].endswith("/test.sh") and strikes("verifiers"):
                return ExecResult(139, "", "Segmentation fault")
            return await run(argv, **options)

        sandbox.exec = exec
        return sandbox


def pytest_benchflow_sandboxes():
    return {"flaky": Flaky()}
"""


@WORKERS
def test_a_sandbox_that_comes_up_the_third_time_costs_two_attempts(bench: Bench, workers: str) -> None:
    bench.task()
    bench.pytester.makeconftest(FLAKY)
    (bench.path / "sandboxes").write_text("2")
    asked = (*ASKED, "--benchflow-agent=oracle", "--benchflow-sandbox=flaky", "--benchflow-retries=2")
    done = bench.run(*asked, "-n", workers)
    assert done.ret == 0, done.outlines
    assert "tried again: 1 of 1 rollouts; earlier attempts are kept and not counted" in done.outlines
    (path,) = bench.rollouts()
    assert sorted(each.name for each in (path / "attempts").iterdir()) == ["1", "2"]
    configs = [bench.config(each) for each in (path / "attempts/1", path / "attempts/2", path)]
    assert [config["attempt"] for config in configs] == [1, 2, 3]
    assert len({config["session_id"] for config in configs}) == 1
    assert configs[0]["earlier"] is None
    assert configs[2]["earlier"]["why"] == "it was unhealthy (infra: sandbox)"
    found = json.loads((path.parent / "summary.json").read_text())
    assert found["verdicts"] == {"pass": 1}
    assert (found["earlier_attempts"]["count"], found["earlier_attempts"]["by_end"]) == (2, {"infra": 2})
    assert len((path.parent / "results.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "count", "options", "attempts"),
    [
        ("sandboxes", 1, [], 1),
        ("sandboxes", 9, ["--benchflow-retries=1"], 2),
        ("verifiers", 1, ["--benchflow-retries=5"], 2),
        ("verifiers", 9, ["--benchflow-retries=5"], 2),
    ],
    ids=["off", "bounded", "verifier", "verifier-once"],
)
def test_further_attempts_are_asked_for_and_bounded(
    bench: Bench, file: str, count: int, options: list[str], attempts: int
) -> None:
    bench.task()
    bench.pytester.makeconftest(FLAKY)
    (bench.path / file).write_text(str(count))
    done = bench.run(*ASKED, "--benchflow-agent=oracle", "--benchflow-sandbox=flaky", *options)
    assert done.ret == (0 if count < attempts else 1)
    (path,) = bench.rollouts()
    assert bench.config(path)["attempt"] == attempts
    assert len(list(path.glob("attempts/*"))) == attempts - 1


def test_a_number_below_0_is_refused(bench: Bench) -> None:
    bench.task()
    bench.refused(
        *ASKED, "--benchflow-retries=-1", says="--benchflow-retries is -1; it takes a whole number of at least 0"
    )
