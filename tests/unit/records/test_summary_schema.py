"""summary.schema.json tells the whole form of summary.json: what it does not tell of is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from pytest_benchflow.records import job
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = json.loads((Path(job.__file__).with_name("summary.schema.json")).read_text("utf-8"))


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the summary of a job with everything in it."""
    directory = tmp_path_factory.mktemp("job")
    cells: list[dict[str, Any]] = [
        {"rollout": f"{task}-{skills}", "task": task, "agent": "a", "model": "openai/m", "skills": skills}
        for task in ("one", "two", "three")
        for skills in ("with", "without")
    ]
    cells[0]["canary"] = True
    (directory / "job.json").write_text(json.dumps({"job_name": "job", "matrix": cells, "further_runs": []}))
    for name, verdict, reward in (
        ("one-with", "pass", 1.0),
        ("one-without", "fail", 0.0),
        ("two-with", "unhealthy", 1),
    ):
        told = {"verdict": verdict, "rewards": {"reward": reward}, "model": "openai/m"}
        told |= {"agent_result": {"cost_usd": 0.25 if name == "one-with" else None}}
        category = {"verdict_category": "infra"} if verdict == "unhealthy" else {}
        write_rollout(directory / name, result_with={**told, **category}, config_with={"model": "openai/m"})
    note = {"cell": "three-with", "skipped": "needs docker"}
    (directory / "cells.jsonl").write_text(json.dumps(note) + "\n")
    return job.write_job_files(directory)


def test_the_schema_is_one_and_a_whole_summary_fits_it(summary: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(summary, SCHEMA)
    assert summary["schema_version"] == SCHEMA["properties"]["schema_version"]["const"]


def test_what_is_unhealthy_missing_or_unknown_stays_in_the_counts(summary: dict[str, Any]) -> None:
    assert summary["rollouts"] == {"asked": 5, "healthy": 2, "unhealthy": 1, "missing": 2}
    assert summary["solved"] == {"count": 1, "of": 5, "rate": 0.2}
    assert summary["verdicts"] == {"fail": 1, "missing": 2, "pass": 1, "skipped": 1, "unhealthy": 1}
    assert summary["reward"] == {"scored": 2, "asked": 5, "mean": 0.5}
    assert summary["cost_usd"] == {"total": None, "priced_subtotal": 0.25, "unpriced": 2}
    assert summary["canaries"] == {"planned": 1, "healthy": 1, "unhealthy": 0, "skipped": 0, "missing": 0}
    with_skills, without = summary["arms"]
    assert with_skills["solved"] == {"count": 1, "of": 2, "unhealthy": 1, "missing": 0, "skipped": 1}
    assert with_skills["pass_at"] == {"1": {"chance": 1.0, "tasks": 1, "of": 2}}
    assert (without["reward"]["tasks"], without["reward"]["of"]) == (1, 3)


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each object in a JSON value."""
    if isinstance(value, dict):
        yield path
        for name, part in value.items():
            yield from objects(part, (*path, name))
    elif isinstance(value, list) and value:
        yield from objects(value[0], (*path, 0))


def test_a_key_that_the_schema_does_not_tell_of_is_refused_wherever_it_is(summary: dict[str, Any]) -> None:
    # Names of tasks, phases and categories are keys of the user's own, with numbers or tables behind them.
    jsonschema.validate(summary, SCHEMA)
    found = list(objects(summary))
    assert len(found) > 20
    for path in found:
        changed = deepcopy(summary)
        place = changed
        for name in path:
            place = place[name]
        place["surprise"] = "x"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed, SCHEMA)


def test_unknown_and_torn_values_are_no_numbers(summary: dict[str, Any]) -> None:
    for path, value in ((("tokens", "total"), 1.5), (("solved", "of"), -1), (("cost_usd", "priced_subtotal"), None)):
        changed = deepcopy(summary)
        changed[path[0]][path[1]] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed, SCHEMA)
