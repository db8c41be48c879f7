from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import registry
from pytest_benchflow.checks import NotApplicableError, check, run_checks
from pytest_benchflow.checks._check import all_checks
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.rollout import Rollout
from tests.unit.rollouts import write_rollout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@check(severity="warning", category="accounting")
def check_short(rollout: Rollout) -> None:
    """The rollout is short."""
    assert len(rollout.exchanges) < 3, f"{len(rollout.exchanges)} exchanges"


@check()
def check_without_a_message(rollout: Rollout) -> None:
    """The reward is two."""
    assert rollout.reward == 2


@check()
def check_torn(rollout: Rollout) -> None:
    """Raise as a torn record does."""
    raise RecordError(f"{rollout.path.name}/x.jsonl:7: not JSON")


@check(category="conduct")
def check_with_a_bug(rollout: Rollout) -> None:
    """Fail on a bug of the check itself."""
    raise KeyError(rollout.path.name)


@check()
def check_elsewhere(rollout: Rollout) -> None:
    """Say nothing of this rollout."""
    raise NotApplicableError("no such evidence")


@pytest.fixture
def rollout(tmp_path: Path) -> Rollout:
    return Rollout(write_rollout(tmp_path).path)


@pytest.fixture
def clean_registry() -> Iterator[None]:
    yield
    registry.forget_registered()


def test_an_assert_is_a_finding_with_its_own_message(rollout: Rollout) -> None:
    (finding,) = run_checks(rollout, {"short": check_short}).findings
    assert (finding.check, finding.severity, finding.category) == ("short", "warning", "accounting")
    assert finding.message == "3 exchanges"


def test_an_assert_without_a_message_says_the_claim(rollout: Rollout) -> None:
    (finding,) = run_checks(rollout, {"bare": check_without_a_message}).findings
    assert "The reward is two." in finding.message or "1.0 == 2" in finding.message


def test_a_torn_record_and_a_crash_are_errors_and_never_a_pass(rollout: Rollout) -> None:
    report = run_checks(rollout, {"torn": check_torn, "bug": check_with_a_bug})
    assert [finding.severity for finding in report.findings] == ["error", "error"]
    assert "x.jsonl:7" in report.of("torn")[0].message
    assert report.of("bug")[0].message.startswith("check crashed: KeyError")
    assert report.ran == ["torn", "bug"]


def test_what_does_not_apply_is_listed_with_its_reason(rollout: Rollout) -> None:
    report = run_checks(rollout, {"elsewhere": check_elsewhere})
    assert report.not_applicable == {"elsewhere": "no such evidence"}
    assert not report.ran
    assert not report.findings


def test_the_checks_run_once_per_rollout(rollout: Rollout) -> None:
    assert run_checks(rollout) is run_checks(rollout)


def test_registered_checks_run_with_the_shipped_ones(rollout: Rollout, clean_registry: None) -> None:
    registry.register("checks", "short", check_short)
    registry.register("checks", "plain", lambda rollout: rollout.result)
    assert {"short", "plain"} <= set(all_checks())
    report = run_checks(rollout)
    assert [finding.check for finding in report.findings] == ["short"]
    assert "plain" in report.ran


def test_every_shipped_check_states_its_claim() -> None:
    for name, item in all_checks().items():
        assert item.claim.endswith("."), name


@pytest.mark.parametrize(
    "wrong", [{"severity": "fatal"}, {"category": "mood"}, {"needs": ("luck",)}], ids=lambda w: next(iter(w))
)
def test_a_wrong_declaration_names_what_is_allowed(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="it takes"):
        check(**wrong)  # type: ignore[arg-type]


def test_the_report_as_result_json_holds_it(rollout: Rollout) -> None:
    report = run_checks(rollout, {"short": check_short, "elsewhere": check_elsewhere})
    assert report.as_json() == {
        "ran": ["short"],
        "not_applicable": {"elsewhere": "no such evidence"},
        "findings": [
            {"check": "short", "severity": "warning", "message": "3 exchanges", "category": "accounting"},
        ],
    }
