"""A limit counts what rollouts have recorded, also of those that are under way or were killed."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import OverBudgetError
from pytest_benchflow.pricing import read_prices
from pytest_benchflow.rollout.budget import Budget
from tests.unit.rollouts import assistant, exchange, write_records

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir

SESSION = "this-session"
PRICES = read_prices(["m/m=10,50"], None)
# 100 tokens in and 10 out.
ONE = (100 * 10 + 10 * 50) / 1e6
ASKED = [{"role": "user", "content": "Go on."}]
# All that a limit looks at.
CELL: Any = SimpleNamespace(paid=True, model="m/m", config=SimpleNamespace(prices=PRICES))


def begun(job: Path, name: str, *records: Any, session: str = SESSION) -> RunDir:
    """Write a rollout as it is while its agent works: no result yet."""
    rundir = write_records(job / name, records)
    about = {"session_id": session, "rollout_name": name, "started_at": "now", "price": PRICES.as_json("m/m")}
    rundir.config.write_text(json.dumps(about))
    return rundir


def answered() -> Any:
    return exchange(ASKED, assistant("Fine."))


def unanswered() -> Any:
    return exchange(ASKED, None) | {"response": None}


def budget(job: Path, limit: float) -> Budget:
    return Budget(job, SESSION, limit)


def test_what_is_under_way_counts_with_each_exchange_it_records(tmp_path: Path) -> None:
    rundir = begun(tmp_path, "one", answered())
    begun(tmp_path, "of-another-session", answered(), answered(), session="another")
    limited = budget(tmp_path, 1.5 * ONE)
    limited.check(CELL)
    line = json.dumps(answered()).encode() + b"\n"
    with rundir.llm.open("ab", buffering=0) as log:
        log.write(line[:50])
        limited.check(CELL)
        log.write(line[50:])
    with pytest.raises(OverBudgetError, match=rf"has spent \${2 * ONE:.4f}, and"):
        limited.check(CELL)


def test_one_that_was_killed_counts_also_where_it_was_moved_to(tmp_path: Path) -> None:
    begun(tmp_path, "one", answered(), answered())
    limited = budget(tmp_path, 2.5 * ONE)
    limited.check(CELL)
    kept = tmp_path / "one" / "attempts" / "1"
    kept.mkdir(parents=True)
    for path in (tmp_path / "one").iterdir():
        if path.name != "attempts":
            path.rename(kept / path.name)
    again = begun(tmp_path, "one")
    again.config.write_text(again.config.read_text().replace('"now"', '"later"'))
    limited.check(CELL)
    begun(tmp_path, "two", answered())
    with pytest.raises(OverBudgetError, match=rf"has spent \${3 * ONE:.4f}, and"):
        limited.check(CELL)


def test_an_unknown_exchange_counts_as_the_dearest_of_the_session(tmp_path: Path) -> None:
    begun(tmp_path, "one", unanswered())
    with pytest.raises(OverBudgetError, match="cannot hold, for what one cost is not known: exchange 0: it has no ans"):
        budget(tmp_path, 1.0).check(CELL)
    begun(tmp_path, "two", answered())
    budget(tmp_path, 2.5 * ONE).check(CELL)
    with pytest.raises(OverBudgetError, match=rf"has spent \${2 * ONE:.4f} \(1 of unknown cost"):
        budget(tmp_path, 1.5 * ONE).check(CELL)


def test_a_rollout_that_cannot_be_read_is_of_unknown_cost_unless_it_is_older_than_the_session(tmp_path: Path) -> None:
    rundir = begun(tmp_path, "one", answered())
    rundir.config.write_text('{"session_id": ')
    with pytest.raises(OverBudgetError, match=r"cannot hold, for what one cost is not known: .*config.json: not JSON"):
        budget(tmp_path, 1.0).check(CELL)
    began = datetime.now(UTC)
    runs = {"session_id": SESSION, "started_at": began.isoformat().replace("+00:00", "Z"), "further_runs": []}
    (tmp_path / "job.json").write_text(json.dumps(runs))
    with pytest.raises(OverBudgetError, match="what one cost is not known"):
        budget(tmp_path, 1.0).check(CELL)
    before = began.timestamp() - 60
    os.utime(rundir.config, (before, before))
    budget(tmp_path, 1.0).check(CELL)


def test_what_was_seen_of_a_log_counts_also_where_it_is_gone(tmp_path: Path) -> None:
    rundir = begun(tmp_path, "one", answered(), answered())
    limited = budget(tmp_path, 2.5 * ONE)
    limited.check(CELL)
    rundir.llm.unlink()
    begun(tmp_path, "two", answered())
    with pytest.raises(OverBudgetError, match=rf"has spent \${3 * ONE:.4f}, and"):
        limited.check(CELL)
    rundir.llm.mkdir()
    with pytest.raises(OverBudgetError, match=r"what one cost is not known: llm_trajectory.jsonl cannot be read"):
        limited.check(CELL)
