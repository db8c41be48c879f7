"""What a process tells of its rollouts under way, by the exchanges that a real gateway records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_benchflow.pricing import read_prices
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.cell import Cell, settled, task_of
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.flights import Flight
from pytest_benchflow.rollout.progress import Progress
from tests.unit.proxy.door import asking, door, run

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Backend
    from pytest_benchflow.proxy.routes import Route

SECRET = "of-nobody-1234567890"
TURNS = (
    ScriptTurn(calls=(Call("look"), Call("edit"))),
    ScriptTurn(calls=(Call(SECRET),), usage=False),
    ScriptTurn(status=500, error="broken"),
    ScriptTurn(text="done"),
)


def cell_in(directory: Path) -> tuple[Cell, Flight]:
    """Return a rollout whose provider is paid, with nothing that could run it."""
    task = directory / "task"
    (task / "tests").mkdir(parents=True)
    (task / "task.toml").write_text("", "utf-8")
    (task / "instruction.md").write_text("Do it.\n", "utf-8")
    (task / "tests" / "test.sh").write_text("", "utf-8")
    config = settled(RolloutConfig(task, model="openai/m", jobs_dir=directory, job_name="job"))
    route = cast("Route", PaidRoute())
    cell = Cell(config, task_of(config), cast("Backend", None), cast("Any", None), route, "default", {})
    return cell, Flight(config, config, RunDir(directory / "job" / "one"))


class PaidRoute:
    source = "provider"


def last(told: list[dict[str, Any]]) -> dict[str, Any]:
    return next(each["rollout"] for each in reversed(told) if "rollout" in each)


@pytest.mark.parametrize("priced", [True, False], ids=["priced", "unpriced"])
def test_exchanges_are_counted_and_priced_as_they_end(tmp_path: Path, priced: bool) -> None:
    cell, flight = cell_in(tmp_path)
    told: list[dict[str, Any]] = []
    progress = Progress(told.append)
    price = read_prices(["openai/m=1000000,1000000"], None).as_json("openai/m") if priced else {"unpriced": "nobody"}

    async def drive() -> None:
        async with door(tmp_path / "run", ScriptedUpstream(TURNS), secrets=[SECRET]) as there:
            there.endpoint.heard = progress.hearing(flight.name, price)
            with progress.following(flight, cell) as watch:
                watch("agent_execution")
                for number in range(len(TURNS)):
                    await there.post(asking(f"question {number}"))
                watch("verifier")

    run(drive())
    progress.close()
    progress.close()
    state = last(told)
    assert (state["name"], state["agent"], state["model"]) == ("one", "baseline", "openai/m")
    assert state["exchanges"] == 4
    # Two answers tell what they used, one hides it, and a refusal costs nothing.
    assert state["untold"] == 1
    assert state["tokens"] > 0
    # The verdict is not there, so more than the one exchange may be unknown, and nothing says that it is healthy.
    assert state["cost"] == (state["tokens"] if priced else 0.0)
    assert state["unpriced"] == (1 if priced else 3)
    assert SECRET not in json.dumps(told)
    assert state["tool"] not in (None, "edit")
    assert (state["ended"], state["verdict"], state["healthy"]) == (True, None, False)
    assert flight.phases == ["agent_execution", "verifier"]


def test_what_came_of_a_rollout_is_read_from_its_result(tmp_path: Path) -> None:
    cell, flight = cell_in(tmp_path)
    told: list[dict[str, Any]] = []
    progress = Progress(told.append)
    progress.planned([flight.config, replace(flight.config, trial=2), flight.config])
    progress.without("another")
    with progress.following(flight, replace(cell, route=None)) as watch:
        watch("verifier")
        flight.rundir.create()
        flight.rundir.result.write_text('{"verdict": "pass", "timing": {"total": 1.5}}', "utf-8")
    progress.close()
    assert {"planned": 2} in told
    assert {"without": "another"} in told
    state = last(told)
    assert (state["ended"], state["verdict"], state["healthy"], state["seconds"]) == (True, "pass", True, 1.5)
    assert (state["calls_model"], state["paid"], state["unpriced"]) == (False, False, 0)


def test_what_cannot_be_told_is_said_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(number: int, line: bytes) -> Any:
        raise RuntimeError(f"nobody foresaw {line.decode()}")

    monkeypatch.setattr("pytest_benchflow.rollout.progress.classify_line", broken)
    cell, flight = cell_in(tmp_path)
    told: list[dict[str, Any]] = []
    progress = Progress(told.append)
    progress.without("before")
    hear = progress.hearing(flight.name, None)
    with progress.following(flight, cell) as watch:
        watch("agent_execution")
        hear(b"one")
        hear(b"two")
        watch("verifier")
    progress.without("after")
    progress.close()
    assert [each["fault"] for each in told if "fault" in each] == ["RuntimeError: nobody foresaw one"]
    assert {"without": "before"} in told
    assert {"without": "after"} in told
    state = last(told)
    # Nothing is known of the two, but that they were.
    assert (state["exchanges"], state["tokens"], state["untold"], state["unpriced"]) == (2, 0, 2, 2)
    assert (state["ended"], state["healthy"]) == (True, False)


def test_a_listener_that_breaks_hears_the_rest(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def breaks(what: dict[str, Any]) -> None:
        told.append(what)
        if what == {"without": "one"}:
            raise RuntimeError("it cannot be sent")

    progress = Progress(breaks)
    for name in ("one", "two", "one"):
        progress.without(name)
    progress.close()
    fault = {"fault": "RuntimeError: it cannot be sent"}
    assert told == [{"without": "one"}, fault, {"without": "two"}, {"without": "one"}]


def test_a_listener_that_is_gone_breaks_nothing(tmp_path: Path) -> None:
    def gone(_: dict[str, Any]) -> None:
        raise OSError("cannot send")

    cell, flight = cell_in(tmp_path)
    progress = Progress(gone)
    with progress.following(flight, cell) as watch:
        watch("verifier")
    progress.close()
    assert flight.phases == ["verifier"]
