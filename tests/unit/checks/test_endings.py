"""How a rollout ended is told apart: a client's own limit, a lost answer, a hung provider, a sandbox that went away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import Finding, run_checks
from pytest_benchflow.checks.verdict import verdict_of
from pytest_benchflow.records.rollout import Rollout
from tests.unit.rollouts import Talk, assistant, call, edit, tool, write_lines, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

    Json = dict[str, Any]

START = datetime(2026, 3, 1, 10, tzinfo=UTC)


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat()


def given_up(*tries: float, last: float = 20.0, **error: Any) -> list[Json]:
    """Return a run whose first request was sent again and again; `tries` are the seconds between."""
    talk = Talk()
    for _ in tries:
        talk.ask(assistant("", call("late")), used=False)
    talk.ask(assistant("", call("kept")))
    talk.ask(assistant("Done."))
    start = 0.0
    for record, seconds in zip(talk.records, (*tries, last, last), strict=True):
        record["request"]["timestamp"] = at(start)
        # The provider went on and answered later than the client waited.
        record["response"]["timestamp"] = at(start + (seconds + 90 if len(tries) > talk.records.index(record) else 10))
        start += seconds
    for record in talk.records[: len(tries)]:
        if error:
            record |= {"response": None, **error}
    return talk.records


def warned(path: Path, records: list[Json], **config: Any) -> str | None:
    write_rollout(path, records, config_with=config)
    report = run_checks(Rollout(path))
    assert not report.errors
    return next((finding.message for finding in report.of("clients_waited")), None)


LIMITS = {"limits": {"seconds": {"task": {"agent": 900.0, "llm_client": 240.0}}}}


@pytest.mark.parametrize(
    ("tries", "config", "named"),
    [
        ((300.6, 301.9), {}, ("2 answers", "300 s", "OpenHands", "exchange 0, 1")),
        ((600.2, 605.0, 600.4), {}, ("3 answers", "600 s", "OpenAI")),
        ((240.5, 243.0), LIMITS, ("240 s", "limits.seconds.task.llm_client")),
        ((77.0, 77.4), {}, ("77 s", "no limit of config.json")),
        ((45.2, 45.9), {"agent_env": {"LLM_TIMEOUT": "45"}}, ("45 s", "agent_env.LLM_TIMEOUT")),
    ],
    ids=["sdk-default", "client-default", "own-limit", "unknown", "agents-variable"],
)
def test_two_clients_that_gave_up_after_the_same_time_name_it_and_its_limit(
    tmp_path: Path, tries: tuple[float, ...], config: Json, named: tuple[str, ...]
) -> None:
    message = warned(tmp_path, given_up(*tries), **config)
    assert message is not None
    assert all(part in message for part in named), message


@pytest.mark.parametrize("tries", [(300.0,), (300.0, 410.0), ()], ids=["once", "at-different-times", "never"])
def test_one_lost_race_is_no_limit(tmp_path: Path, tries: tuple[float, ...]) -> None:
    assert warned(tmp_path, given_up(*tries)) is None


def test_errors_that_say_so_count_by_their_own_duration(tmp_path: Path) -> None:
    failed: Json = {"error": {"type": "APITimeoutError", "message": "Request timed out."}, "duration_ms": 300_040.0}
    message = warned(tmp_path, given_up(302.0, 309.0, **failed))
    assert message is not None
    assert "about 300 s" in message


def test_a_gateway_timeout_counts_from_request_to_answer(tmp_path: Path) -> None:
    records = given_up(400.0, 500.0)
    for record in records[:2]:
        begun = datetime.fromisoformat(record["request"]["timestamp"])
        answer = {"error": {"message": "deadline exceeded", "type": "timeout"}}
        record["error"] = answer["error"]
        ended = (begun + timedelta(seconds=120.2)).isoformat()
        record["response"] = {"status_code": 504, "timestamp": ended, "body": answer}
    message = warned(tmp_path, records)
    assert message is not None
    assert "about 120 s" in message


def test_requests_that_were_answered_are_no_race(tmp_path: Path) -> None:
    talk = Talk()
    for _ in range(3):
        talk.ask(assistant("", call("again")))
    for number, record in enumerate(talk.records):
        record["request"]["timestamp"], record["response"]["timestamp"] = at(300 * number), at(300 * number + 5)
    assert warned(tmp_path, talk.records) is None


TIMEOUT = {"error": "Agent timed out after 900s", "error_category": "timeout", "idle_before_timeout_s": 3.0}


@pytest.mark.parametrize(
    ("changes", "check", "category"),
    [
        (
            {"error": "Agent timed out: the sandbox was destroyed by another client"},
            "sandbox_was_not_lost",
            "infra",
        ),
        ({"error": "timed out: connection reset by peer"}, "sandbox_was_not_lost", "infra"),
        ({"error_details": "Traceback: no such container: bf-1"}, "sandbox_was_not_lost", "infra"),
        ({"idle_before_timeout_s": 700.0}, "timeout_was_the_agents", "infra"),
        ({"idle_before_timeout_s": 700.0, "in_flight_at_timeout": "exchange 3"}, "timeout_was_the_agents", "infra"),
    ],
    ids=["deleted", "connection", "deleted-by-details", "silent", "hung-provider"],
)
def test_a_timeout_that_is_none_is_unhealthy(tmp_path: Path, changes: Json, check: str, category: str) -> None:
    write_rollout(tmp_path, result_with={**TIMEOUT, **changes})
    report = run_checks(Rollout(tmp_path))
    assert {finding.check for finding in report.errors} == {check}
    assert verdict_of(report.findings, Rollout(tmp_path).result) == ("unhealthy", category)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"error_details": "last output: curl: connection refused, the sandbox of the app says permission denied"},
        {"idle_before_timeout_s": 800.0, "in_flight_at_timeout": "c7 (make test)"},
    ],
    ids=["plain", "alarming-words-in-output", "long-command"],
)
def test_an_agent_that_worked_until_its_time_was_up_is_healthy(tmp_path: Path, changes: Json) -> None:
    write_rollout(tmp_path, result_with={**TIMEOUT, **changes})
    report = run_checks(Rollout(tmp_path))
    assert verdict_of(report.findings, Rollout(tmp_path).result) == ("normal_timeout", None)


def foreign(path: Path, records: list[Json], events: list[Json] | None = None, **changes: Any) -> set[str]:
    rundir = write_rollout(path, records, result_with=changes)
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    edit(rundir.result, lambda value: value.pop("idle_before_timeout_s"))
    if events:
        write_lines(rundir.acp, [{"type": "agent_message", "text": "I look."}, *events])
    return {finding.check for finding in run_checks(Rollout(path)).errors}


def test_another_tools_timeout_is_judged_by_what_it_recorded(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("", call("c2")), used=False)
    hung = talk.records[1]
    hung |= {"response": None, "error": {"type": "aborted", "message": "the agent was stopped"}}
    ended: Json = {"error": "Agent timed out after 900s", "error_category": "timeout"}
    assert foreign(tmp_path / "unknown", talk.records, **ended) == set()
    hung["duration_ms"] = 640_000.0
    assert foreign(tmp_path / "hung", talk.records, **ended) == {"timeout_was_the_agents"}
    hung["duration_ms"] = 20_000.0
    assert foreign(tmp_path / "short", talk.records, **ended) == set()


def test_another_tools_silence_is_read_from_its_events(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."))
    ended: Json = {"error": "Agent timed out after 900s", "error_category": "timeout"}
    cases: list[tuple[str, float, set[str]]] = [
        ("silent", 895.0, {"timeout_was_the_agents"}),
        ("at-work", 100.0, set()),
    ]
    for name, stamp, found in cases:
        events: list[Json] = [
            {"type": "tool_call", "tool_call_id": "c1", "title": "ls", "status": "completed", "timestamp": at(95.0)},
            {"type": "agent_timeout", "timeout_sec": 900, "pending_tool_call_ids": [], "timestamp": at(stamp)},
        ]
        assert foreign(tmp_path / name, talk.records, events, **ended) == found


@pytest.mark.parametrize(
    ("ended", "error", "found"),
    [
        ({"reason": "timeout", "terminal_trajectory_complete": True}, "Agent timed out after 900s", set()),
        ({"reason": "idle"}, "Agent timed out after 900s", {"timeout_was_the_agents"}),
        ({"reason": "timeout"}, "Agent stopped: no activity for 600 s", {"timeout_was_the_agents"}),
        ({"terminal_trajectory_complete": False}, "Agent timed out after 900s", {"trajectory_is_whole"}),
    ],
    ids=["at-work", "idle-by-its-event", "idle-by-its-error", "not-complete"],
)
def test_how_a_timeout_came_is_heard(tmp_path: Path, ended: Json, error: str, found: set[str]) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."))
    events: list[Json] = [
        {"type": "tool_call", "tool_call_id": "c1", "title": "ls", "status": "completed"},
        {"type": "agent_timeout", "timeout_sec": 900, "pending_tool_call_ids": [], **ended},
    ]
    assert foreign(tmp_path, talk.records, events, error=error, error_category="timeout") == found


def test_a_category_decides_and_not_the_words_of_a_tool(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1", cmd="cat log")), used=False)
    talk.say(assistant("", call("c1", cmd="cat log")))
    talk.say({"role": "tool", "tool_call_id": "c1", "content": "sandbox deleted; connection reset by peer; Traceback"})
    talk.ask(assistant("The log says: sandbox deleted, verifier crashed."))
    write_rollout(tmp_path, talk.records)
    assert not run_checks(Rollout(tmp_path)).findings


def test_a_verifier_whose_sandbox_went_away_is_no_failed_verifier(tmp_path: Path) -> None:
    lost = {"verifier_error": "sandbox bf-1 not found", "verifier_error_category": "crash", "rewards": None}
    write_rollout(tmp_path, result_with=lost)
    report = run_checks(Rollout(tmp_path))
    assert verdict_of(report.findings, Rollout(tmp_path).result) == ("unhealthy", "infra")


def test_tools_that_change_their_schema_are_a_warning(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("Done."), tools=[tool("bash", "cmd", "timeout"), tool("finish", "message")])
    write_rollout(tmp_path, talk.records)
    (finding,) = run_checks(Rollout(tmp_path)).findings
    assert (finding.check, finding.severity) == ("tools_keep_their_schema", "warning")
    assert "bash" in finding.message


@pytest.mark.parametrize("environment", ["modal", "firecracker"], ids=["known-elsewhere", "unknown"])
def test_a_sandbox_of_another_tool_is_not_judged_by_ours(tmp_path: Path, environment: str) -> None:
    rundir = write_rollout(tmp_path, config_with={"environment": environment, "acp_transport": "ssh"})
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    assert not run_checks(Rollout(tmp_path)).errors


def test_what_other_tools_do_not_record_is_not_applicable(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    edit(
        rundir.config, lambda value: [value.pop(key) for key in ("plugin_version", "acp_transport", "environment_mode")]
    )
    edit(rundir.result, lambda value: [value.pop(key) for key in ("skill_catalog", "task_skills_loading", "n_prompts")])
    report = run_checks(Rollout(tmp_path))
    assert not report.findings
    assert {"transport_fits", "verifier_place_recorded"} <= set(report.not_applicable)


def test_a_message_is_one_line_that_commands_no_terminal() -> None:
    said = Finding("x", "error", "a\x1b[2J\r\n\u202eb\u2028c\ud800\x00 é 日本 " + "z" * 5000).message
    assert said.isprintable()
    assert said.startswith("a\\x1b[2J\\r\\n\\u202eb\\u2028c\\ud800\\x00 é 日本 zzz")
    assert len(said) < 2100
