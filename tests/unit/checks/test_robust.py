"""Whatever stands in a record, a check says what is wrong and never crashes."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.records.rollout import Rollout
from tests.unit.checks.test_conduct import FORMATS
from tests.unit.checks.test_faults import doing
from tests.unit.checks.test_skills import SHOWN
from tests.unit.rollouts import edit, three_steps, write_lines, write_rollout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JUNK: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, ["x", {}], "\ud800", 10**30, [[[]]]]
TIMEOUT = {"error": "Agent timed out", "error_category": "timeout", "idle_before_timeout_s": 1.0}
CONFIGS: list[dict[str, Any]] = [
    {},
    {"reasoning_effort": "max"},
    {"skill_mode": "with-skill", "task_skills": ["a"]},
]
EVENTS: list[dict[str, Any]] = [
    {"type": "user_message", "text": "Do it.", "phase": "agent"},
    {
        "type": "tool_call",
        "tool_call_id": "c1",
        "kind": "execute",
        "title": "ls",
        "status": "completed",
        "raw_input": {"command": "cat /tests/a"},
        "content": [{"type": "content", "content": {"type": "text", "text": "x"}}],
        "locations": [{"path": "/x"}],
        "timestamp": "2026-03-01T10:00:00Z",
    },
    {"type": "agent_timeout", "timestamp": "2026-03-01T10:00:00Z"},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield (*path, key)
        yield from places(child, (*path, key))


def spoil(path: Path, luck: random.Random) -> None:
    """Replace one value in one record of a file by something else."""
    lines = path.read_text("utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    number = luck.randrange(len(lines))
    record = json.loads(lines[number])
    *way, last = luck.choice(list(places(record)))
    holder = record
    for key in way:
        holder = holder[key]
    holder[last] = copy.deepcopy(luck.choice(JUNK))
    lines[number] = json.dumps(record)
    path.write_text("\n".join(lines), "utf-8")


@pytest.mark.parametrize("seed", range(25), ids=lambda seed: f"seed-{seed}")
def test_no_odd_value_crashes_a_check(tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)  # noqa: S311 - luck that can be had again
    kinds = [doing("cat /solution/solve.sh", "x"), three_steps(), *FORMATS.values(), *(r for r, _ in SHOWN.values())]
    for number in range(8):
        records = copy.deepcopy(luck.choice(kinds))
        for record in records:
            record["request"]["timestamp"] = record["response"]["timestamp"] = "2026-03-01T10:00:00Z"
        place = tmp_path / str(number)
        rundir = write_rollout(place, records, result_with=luck.choice([{}, TIMEOUT]), config_with=luck.choice(CONFIGS))
        write_lines(rundir.acp, EVENTS)
        if luck.random() < 0.5:
            edit(rundir.config, lambda value: value.pop("plugin_version"))
        for _ in range(luck.choice([1, 1, 3])):
            spoil(luck.choice([rundir.llm, rundir.llm, rundir.acp, rundir.row, rundir.result, rundir.config]), luck)
        said = [finding.message for finding in run_checks(Rollout(place)).findings]
        assert not any("crashed" in message for message in said), said
