"""pytest-benchflow regrade: kept workspaces are verified again; nothing else of a rollout changes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.report.review import checks_for, review_rollout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugin.bench import Bench

ASKED = ("tasks", "-m", "rollout", "--benchflow-job-name=ramp")
# Crashes until what it needs is there, as a download would be.
NEEDY = """\
#!/bin/sh
[ -e /var/tmp/there ] || { echo "out of order" >&2; exit 7; }
if [ "$(cat /app/out.txt 2>/dev/null)" = done ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""

# Agents that run out of time at work, and that break.
AGENTS = """
from pytest_benchflow.contracts import AgentOutcome


class Told:
    version, uses_model, api_dialect = "1", False, None

    def __init__(self, name):
        self.name = name

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        await context.sandbox.exec(["sh", "-c", "echo done > /app/out.txt"])
        if self.name == "late":
            return AgentOutcome(stop="timeout", in_flight_at_timeout="a tool")
        return AgentOutcome(stop="crashed", error="an invented crash")


def pytest_benchflow_agents():
    return {"late": Told, "broken": Told}
"""


@pytest.fixture
def kept() -> Iterator[list[Path]]:
    """Remove what a test had kept."""
    places: list[Path] = []
    yield places
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def keep(bench: Bench, kept: list[Path], *agents: str) -> dict[str, Path]:
    """Run agents on the one task with their sandboxes kept; return the rollouts by agent."""
    asked = [f"--benchflow-agent={agent}" for agent in agents]
    bench.run(*ASKED, *asked, "--benchflow-keep-sandbox")
    found = {path.name.split("__")[1]: path for path in bench.rollouts()}
    assert list(found) == sorted(agents)
    kept += [Path(bench.result(path)["sandbox_kept"]) for path in found.values()]
    return found


def mend(bench: Bench, path: Path) -> None:
    place = Path(bench.result(path)["sandbox_kept"]) / "root/var/tmp"
    place.mkdir(parents=True, exist_ok=True)
    (place / "there").touch()


def regrade(bench: Bench, *arguments: str) -> pytest.RunResult:
    return bench.pytester.run(sys.executable, "-m", "pytest_benchflow", "regrade", "jobs/ramp", *arguments)


def unhealthy(path: Path) -> list[str]:
    """Return what a review finds at fault."""
    return [finding.message for finding in review_rollout(path, checks_for()).report.errors]


def test_a_verifier_that_crashed_gives_its_score_and_the_first_record_stays(bench: Bench, kept: list[Path]) -> None:
    bench.task(test=NEEDY)
    found = keep(bench, kept, "nop", "oracle")
    first = {name: (path / "result.json").read_bytes() for name, path in found.items()}
    again = regrade(bench)
    assert again.ret == 0, again.errlines
    said = "unhealthy (verifier), no reward -> unhealthy (verifier), no reward"
    assert again.outlines == [f"hello__{agent}__none__default__1: {said}" for agent in ("nop", "oracle")]
    for path in found.values():
        mend(bench, path)
    again = regrade(bench, "-k", "oracle and not nop")
    assert again.outlines == ["hello__oracle__none__default__1: unhealthy (verifier), no reward -> pass, reward 1"]
    assert regrade(bench, "-k", "nop").outlines[0].endswith("-> fail, reward 0")
    for name, path in found.items():
        assert (path / "regrades/1/first/result.json").read_bytes() == first[name]
        assert json.loads((path / "regrades/2/regrade.json").read_text())["rewards"] == {
            "reward": float(name == "oracle")
        }
        assert unhealthy(path) == []
        result = bench.result(path)
        assert result["regraded"]["count"] == 2
        assert result["regraded"]["first"] == {"verdict": "unhealthy", "category": "verifier", "rewards": None}
        assert result["timing"] == json.loads(first[name])["timing"]
        # The workspace itself is as it was: what was verified is a copy.
        assert not list((Path(result["sandbox_kept"]) / "root/logs/verifier").glob("reward*"))
    summary = json.loads((bench.path / "jobs/ramp/summary.json").read_text())
    assert summary["verdicts"] == {"fail": 1, "pass": 1}
    ledger = [json.loads(line) for line in (bench.path / "jobs/ramp/sandboxes.jsonl").read_text().splitlines()]
    assert {line["event"] for line in ledger[-2:]} == {"create", "deleted"}


def test_a_timeout_stays_one_and_a_broken_run_is_not_verified_again(bench: Bench, kept: list[Path]) -> None:
    bench.task(test=NEEDY)
    bench.pytester.makeconftest(AGENTS)
    found = keep(bench, kept, "broken", "late")
    for path in found.values():
        mend(bench, path)
    broken = (found["broken"] / "result.json").read_bytes()
    done = regrade(bench)
    assert done.ret == 1
    assert "not verified again: its run failed (agent_crashed), and no verifier undoes that" in done.outlines[0]
    assert (found["broken"] / "result.json").read_bytes() == broken
    late = bench.result(found["late"])
    assert (late["rewards"], late["error_category"]) == ({"reward": 1.0}, "timeout")
    assert late["verdict"] not in ("pass", "fail")


def test_no_record_of_a_regrade_turns_a_fact_into_a_pass(bench: Bench, kept: list[Path]) -> None:
    bench.task(test=NEEDY)
    (path,) = keep(bench, kept, "oracle").values()
    mend(bench, path)
    assert regrade(bench).ret == 0
    honest = (path / "result.json").read_text()
    first = path / "regrades/1/first/result.json"
    assert unhealthy(path) == []

    def tell(file: Path, **changes: Any) -> None:
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    was = first.read_text()
    tell(first, error="the sandbox was lost", error_category="sandbox")
    assert any(
        "error_category is None, and was 'sandbox'" in each or "error is None" in each for each in unhealthy(path)
    )
    first.write_text(was)
    tell(first, verdict="unhealthy", verdict_category="conduct")
    assert any("was unhealthy (conduct) before its verifier ran again" in each for each in unhealthy(path))
    first.unlink()
    assert any("the first record is not in regrades/1" in each for each in unhealthy(path))
    first.write_text(was)
    (path / "result.json").write_text(json.dumps({**json.loads(honest), "regraded": None}))
    assert any("`pytest-benchflow regrade` completes it" in each for each in unhealthy(path))
    assert review_rollout(path, checks_for()).verdict == "unhealthy"


def test_a_regrade_that_was_killed_half_way_is_completed_by_the_next(bench: Bench, kept: list[Path]) -> None:
    bench.task(test=NEEDY)
    (path,) = keep(bench, kept, "oracle").values()
    first = (path / "result.json").read_bytes()
    mend(bench, path)
    assert regrade(bench).ret == 0
    whole = bench.result(path)
    # As a kill leaves it: the score is in regrades/1, and the rollout's own files are still the first ones, or gone.
    (path / "result.json").write_bytes(first)
    shutil.rmtree(path / "verifier")
    (path / "regrades/.draft/verifier").mkdir(parents=True)
    assert unhealthy(path)
    assert regrade(bench).outlines == ["hello__oracle__none__default__1: pass, reward 1 -> pass, reward 1"]
    assert sorted(each.name for each in (path / "regrades").iterdir()) == ["1", "2"]
    assert bench.result(path)["regraded"]["first"] == whole["regraded"]["first"]
    assert (path / "regrades/1/first/result.json").read_bytes() == first
    assert unhealthy(path) == []
    assert [json.loads(line)["regrade"] for line in (path / "rewards.jsonl").read_text().splitlines()] == [1, 2]


def test_what_was_not_kept_or_is_another_task_now_is_told(bench: Bench, kept: list[Path]) -> None:
    task = bench.task(test=NEEDY)
    assert bench.run(*ASKED, "--benchflow-agent=nop").ret == 1
    refused = regrade(bench)
    assert refused.ret == 2
    assert "pass --benchflow-keep-sandbox to pytest the next time" in refused.stderr.str()
    (path,) = keep(bench, kept, "nop").values()
    assert "has no rollout that fits -k 'oracle'" in regrade(bench, "-k", "oracle").stderr.str()
    assert "-k 'and' is no expression" in regrade(bench, "-k", "and").stderr.str()
    honest = (path / "result.json").read_text()
    # A record may name any place: only what was kept here is mounted.
    (path / "result.json").write_text(honest.replace(bench.result(path)["sandbox_kept"], "/etc"))
    assert "names '/etc' as the workspace, which is none that was kept here" in regrade(bench).stdout.str()
    (path / "result.json").write_text(honest)
    (task / "tests/test.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    done = regrade(bench)
    assert (done.ret, bench.result(path)["rewards"]) == (1, None)
    assert "its task is another one now" in done.stdout.str()
    assert Rollout(path).verdict == "unhealthy"
