"""Each capability is found in an agent that has it, and missed in one that has the fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.agents._acp import drive
from pytest_benchflow.contracts import AgentOutcome, Mount
from pytest_benchflow.rollout.capabilities import CAPABILITIES, judge
from pytest_benchflow.rollout.probing import probe
from pytest_benchflow.rollout.scenarios import SCENARIOS
from pytest_benchflow.rollout.session import RolloutSession
from pytest_benchflow.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_benchflow.contracts import AgentContext, Backend
    from pytest_benchflow.rollout.capabilities import Capability, Judgement
    from pytest_benchflow.rollout.probing import Evidence
    from pytest_benchflow.tasks.task import Task

    Probe = Callable[..., Evidence]

PROGRAM = Path(__file__).with_name("acp_agent.py")
BY_NAME = {capability.name: capability for capability in CAPABILITIES}


class Invented:
    """The agent of acp_agent.py, with faults."""

    version: str | None = "7"
    uses_model = True
    api_dialect: str | None = "chat"

    def __init__(self, *faults: str) -> None:
        self.name = "-".join(("invented", *faults))
        self._faults = faults

    def unsupported(self, task: Task) -> str | None:  # noqa: ARG002 - as the protocol has it
        return None

    async def install(self, backend: Backend, task: Task, log_dir: Path) -> tuple[Mount, ...]:  # noqa: ARG002
        return (Mount(PROGRAM, "/opt/acp_agent.py"),)

    async def run(self, context: AgentContext) -> AgentOutcome:
        env = {
            "BENCHFLOW_PROVIDER_BASE_URL": f"{context.base_url}/v1",
            "BENCHFLOW_PROVIDER_API_KEY": str(context.token),
        }
        command = ["python3", "/opt/acp_agent.py", *self._faults]
        return await drive(await context.sandbox.spawn(command, env=env, cwd=context.sandbox.workdir), context)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """Return what runs an agent with some faults through a scenario."""
    jobs = tmp_path_factory.mktemp("jobs")
    settings = Settings(jobs_dir=jobs, job_name="job", agent_timeout=20.0, idle_timeout=3.0)
    session = RolloutSession(settings, session_id="capabilities")
    yield lambda scenario, *faults: probe(session, Invented(*faults), SCENARIOS[scenario])
    session.close()


def judged(run: Probe, capability: str, *faults: str) -> Judgement:
    asked: Capability = BY_NAME[capability]
    return judge(asked, run(asked.scenario, *faults))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_agent_without_faults_supports_all_that_applies(run: Probe, scenario: str) -> None:
    found = run(scenario, "titles", *(["asks"] if scenario == "permission_refused" else []))
    shown = {each.name: judge(each, found).status for each in CAPABILITIES if each.scenario == scenario}
    moot = {"cut_retried", "cut_ends"}
    assert shown == {name: "not applicable" if name in moot else "supported" for name in shown}
    assert shown


def test_a_streaming_agent_asks_again_after_a_cut(run: Probe) -> None:
    assert judged(run, "cut_retried", "streams") == ("supported", "2 requests")
    assert judged(run, "cut_ends", "streams").status == "supported"


@pytest.mark.parametrize(
    ("capability", "faults", "says"),
    [
        ("initialize", ["is-dead"], "not ready for a prompt: the agent exited with code 1 during initialize"),
        ("text", ["says-nothing"], "its client did not hear what the model said"),
        ("tool_call", ["runs-twice"], "the command ran 2 times"),
        ("tool_call", ["forgets"], "the model did not get what it printed"),
        ("parallel_calls", ["runs-the-first"], "of two calls in one answer ran: 1"),
        ("long_prompt", ["reads-short-lines"], "it was silent for 3 s, with no model call open"),
        ("long_answer", ["cuts"], "its client heard 65536 of"),
        ("long_output", ["dies-of-long-output"], "exited with code 5"),
        ("tool_error", ["dies-of-a-failure"], "exited with code 4"),
        ("permission_refused", ["asks", "disobeys"], "it ran a command for which permission was refused"),
        ("error_retried", ["gives-up"], "after 1 request the agent answered session/prompt with error"),
        ("error_ends", ["hangs-after-an-error"], "1 request in "),
        ("cut_retried", ["streams", "takes-a-part"], "after 1 request its turn ended with end_turn"),
        ("cut_ends", ["streams", "hangs-after-a-cut"], "it hung: it was silent"),
        ("cancel_model", ["says-it-is-done"], "after session/cancel its turn ended with end_turn"),
        ("cancel_tool", ["ignores-cancel"], "after session/cancel it hung: it was silent for 3 s"),
        ("cancel_model", ["ignores-cancel"], "the agent did not end its turn within 10 s of session/cancel"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else str(value).partition(" ")[0],
)
def test_a_fault_is_found(run: Probe, capability: str, faults: list[str], says: str) -> None:
    status, detail = judged(run, capability, *faults)
    assert status == "not supported"
    assert says in detail


@pytest.mark.parametrize(
    ("capability", "faults", "says"),
    [
        ("tool_call", ["toolless"], "no tool runs a command; it offers none"),
        ("cancel_tool", ["toolless"], "no tool runs a command"),
        ("permission_refused", [], "it asks for no permission"),
        ("cut_ends", [], "it asks for no stream"),
    ],
    ids=["no-tool", "nothing-to-cancel", "no-permission", "no-stream"],
)
def test_what_does_not_apply_says_why(run: Probe, capability: str, faults: list[str], says: str) -> None:
    status, detail = judged(run, capability, *faults)
    assert status == "not applicable"
    assert says in detail


def test_an_agent_without_tools_can_be_cancelled_and_crash_too(run: Probe) -> None:
    for capability in ("cancel_model", "cancel_leaves_nothing", "crash_leaves_nothing"):
        assert judged(run, capability, "toolless").status == "supported"


def test_an_agent_that_goes_on_asking_does_not_hang(run: Probe) -> None:
    found = run("model_error", "is-patient")
    assert found.seen is not None
    assert found.seen.seconds > 5  # longer than an idle agent may be silent to its client
    assert judge(BY_NAME["error_ends"], found).status == "supported"


def test_silence_is_judged_by_the_limit_that_was_given(run: Probe) -> None:
    found = run("model_error", "is-patient")
    assert found.seen is not None
    seen = replace(found.seen, outcome=AgentOutcome(stop="timeout"), silent_sec=4.0)
    assert judge(BY_NAME["error_ends"], replace(found, seen=seen, idle_sec=5.0)).status == "supported"
    assert judge(BY_NAME["error_ends"], replace(found, seen=seen)).status == "not supported"


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ({"survivors": ("sleep 60",)}, "1 processes outlived it: sleep 60"),
        ({"outcome": AgentOutcome(stop="finished", stop_reason="end_turn")}, "its first process was killed, and"),
    ],
    ids=["survivor", "unnoticed"],
)
def test_a_crash_that_leaves_something_is_found(run: Probe, seen: dict[str, object], says: str) -> None:
    found = run("crash")
    assert found.seen is not None
    changed = replace(found, seen=replace(found.seen, **seen))  # type: ignore[arg-type]  # fields by name
    status, detail = judge(BY_NAME["crash_leaves_nothing"], changed)
    assert status == "not supported"
    assert says in detail


def test_an_agent_that_cannot_be_launched_supports_nothing(run: Probe) -> None:
    found = replace(run("text", "is-dead"), seen=None, error="no such image")
    assert judge(BY_NAME["text"], found) == ("not supported", "its run broke off: no such image")


def test_what_is_quoted_of_an_agent_holds_no_secret(run: Probe) -> None:
    found = run("model_error", "tells-its-key")
    assert found.seen is not None
    assert "with bf-" in str(found.seen.outcome.error)
    assert "bf-" not in judge(BY_NAME["error_ends"], found).detail


def test_a_probe_trains_no_model(run: Probe) -> None:
    row = (run("text").path / "results.jsonl").read_text()
    assert '"training_ready":false' in row.replace(" ", "")
