"""What is told of a rollout that did not pass."""

from __future__ import annotations

import pytest

from pytest_benchflow.report.failure import hints, repeats_error

ERROR = "the agent exited with code 2 during initialize; the end of its stderr:\nLLM_TIMEOUT is 'soon'"


@pytest.mark.parametrize(
    ("check", "message", "again"),
    [
        pytest.param("no_infrastructure_error", f"the rollout failed: {ERROR}", True, id="as-it-is"),
        pytest.param("no_infrastructure_error", f"failed: {ERROR}".replace("\n", "\\n"), True, id="line-ends-escaped"),
        pytest.param("reward_is_finite", "no finite reward: rewards is None", True, id="what-follows"),
        pytest.param("no_infrastructure_error", "the agent exited with code 2 during initialize", False, id="a-part"),
        pytest.param("token_usage_recorded", "token usage is None", False, id="another-matter"),
    ],
)
def test_a_finding_that_says_an_error_again_is_known(check: str, message: str, *, again: bool) -> None:
    assert repeats_error({"error": ERROR, "rewards": None}, check, message) is again


@pytest.mark.parametrize(
    ("name", "said"),
    [("error_category", "gives the agent"), ("verifier_error_category", "gives its verifier")],
    ids=["agent", "verifier"],
)
def test_whoever_was_too_slow_is_who_needs_more_time(name: str, said: str) -> None:
    (hint,) = hints({name: "timeout"})
    assert said in hint


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("OSError: [Errno 28] No space left on device", "make room"),
        ("OSError: [Errno 30] Read-only file system: '/cache/agents'", "BENCHFLOW_CACHE_DIR"),
        ("OSError: [Errno 24] Too many open files", "please report it"),
        ("KeyError: 'x'", "please report it"),
    ],
)
def test_a_full_or_closed_directory_is_no_fault_of_this_package(error: str, said: str) -> None:
    (hint,) = hints({"error": error, "error_category": "internal"})
    assert said in hint
