"""What processes of a session tell each other of a canary: no word is no leave to start the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_benchflow.errors import HeldBackError
from pytest_benchflow.rollout.canary import Canaries, Canary
from pytest_benchflow.rollout.cell import settled
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.settings import Settings

FIRST = settled(RolloutConfig(Path(__file__).parents[3] / "tasks" / "csv-report", agent="nop", canary=True))
REST = replace(FIRST, canary=False, trial=2)
CANARY = Canary(FIRST, runs=True, plain=True)


def asked(job_dir: Path) -> Canaries:
    return Canaries(job_dir, "session", Settings(canary=("csv-report",)), lambda: [CANARY])


def tell(job_dir: Path, text: str) -> None:
    """Leave what another process says of the canary."""
    (job_dir / f"{asked(job_dir)._mark}{CANARY.name}.json").write_text(text)


@pytest.mark.parametrize("text", ["{", "[]", '"fine"', ""], ids=["torn", "list", "text", "empty"])
def test_a_word_that_cannot_be_read_is_waited_for(tmp_path: Path, text: str) -> None:
    tell(tmp_path, text)
    assert asked(tmp_path).before(REST) == [CANARY]


@pytest.mark.parametrize("word", [{}, {"other": None}, {"fault": False}, {"fault": "is unhealthy"}], ids=json.dumps)
def test_only_a_word_of_no_fault_lets_the_rest_start(tmp_path: Path, word: dict[str, object]) -> None:
    tell(tmp_path, json.dumps(word))
    with pytest.raises(HeldBackError, match="not started: the canary csv-report__nop"):
        asked(tmp_path).before(REST)
    tell(tmp_path, json.dumps({"fault": None}))
    assert asked(tmp_path).before(REST) is None
