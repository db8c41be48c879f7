"""--benchflow-conformance: an item for each thing that an agent should be able to do, a table and a file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.plugin.bench import outcomes

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

PROGRAM = Path(__file__).parents[1] / "unit" / "rollout" / "acp_agent.py"
MANIFEST = """\
contract_version = "1.0"
name = "invented"
install_cmd = "{install}"
launch_cmd = '''
cat > "$HOME/agent.py" <<'PY'
{program}
PY
exec python3 "$HOME/agent.py" {faults}
'''
supports_acp_set_model = false
"""


def manifest(bench: Bench, faults: str = "", *, install: str = "command -v python3", under: str = "mine") -> str:
    """Write a manifest of an invented agent with some faults, and return its path."""
    text = MANIFEST.format(program=PROGRAM.read_text(), faults=faults, install=install)
    bench.write(bench.path / under, {"manifest.toml": text})
    return f"{under}/manifest.toml"


def found(bench: Bench) -> dict[str, Any]:
    """Return what the one conformance.json says of its one agent."""
    (file,) = bench.path.glob("jobs/*/conformance.json")
    (agent,) = json.loads(file.read_text())["agents"]
    return dict(agent)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["serial", "xdist"])
def test_an_agent_that_conforms_passes_alone(bench: Bench, workers: tuple[str, ...]) -> None:
    bench.pytester.makepyfile("def test_of_the_users(): assert False")
    done = bench.run(
        "--benchflow-conformance=baseline", "-k", "text or initialize or tool_call or cut_ends or crash", *workers
    )
    assert done.ret == 0
    assert outcomes(done) == {"passed": 4, "skipped": 1}
    done.stdout.fnmatch_lines(
        [
            "*= conformance =*",
            "baseline: 4 supported, 1 not applicable",
            "  initialize *required  supported: baseline 1",
            "  cut_ends * not applicable: it asks for no stream",
            "jobs/*/conformance.json",
        ]
    )
    agent = found(bench)
    assert (agent["agent"], agent["agent_version"], agent["conforms"]) == ("baseline", "1", True)
    statuses = {each["capability"]: each["status"] for each in agent["capabilities"]}
    assert list(statuses) == ["initialize", "text", "tool_call", "cut_ends", "crash_leaves_nothing"]
    assert len(bench.rollouts()) == 4


def test_a_table_that_cannot_be_written_fails_the_session_in_a_sentence(bench: Bench) -> None:
    file = bench.path / "jobs/here/conformance.json"
    file.mkdir(parents=True)
    done = bench.run("--benchflow-conformance=baseline", "-k", "initialize", "--benchflow-job-name=here")
    assert done.ret == 1
    assert outcomes(done) == {"passed": 1}
    done.stdout.fnmatch_lines(["jobs/here/conformance.json cannot be written: Is a directory"])


def test_a_missing_capability_fails_when_it_is_required_only(bench: Bench) -> None:
    file = manifest(bench, "runs-twice runs-the-first")
    chosen = ("-k", "text or tool_call or parallel_calls")
    done = bench.run(f"--benchflow-conformance={file}", *chosen)
    assert done.ret == 1
    assert outcomes(done) == {"passed": 2, "failed": 1, "xfailed": 1}
    text = done.stdout.str()
    assert "tool_call: the command ran 2 times" in text
    assert "Traceback" not in text
    assert "in " + str(bench.path / "jobs") in text
    done.stdout.fnmatch_lines(["  parallel_calls * reported  not supported*"])
    assert found(bench)["conforms"] is False
    strict = bench.run(f"--benchflow-conformance={file}", "--runxfail", *chosen)
    assert outcomes(strict) == {"passed": 2, "failed": 2}


def test_an_agent_that_cannot_be_installed_fails_each_item_and_says_so_once(bench: Bench) -> None:
    file = manifest(bench, install="echo no such package >&2; exit 3")
    done = bench.run(f"--benchflow-conformance={file}", "-k", "text or tool_call")
    assert outcomes(done) == {"failed": 3}
    text = done.stdout.str()
    assert "initialize: its run broke off: invented could not be installed: its install_cmd ended with exit" in text
    assert text.count("log: ") == 2  # the failure and the table
    assert "tool_call: for the same reason as initialize" in text


def test_agents_of_a_directory_and_of_hooks_are_checked_by_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest(bench, under="agents/deep")
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(bench.path / "agents"))
    bench.pytester.makeconftest(
        """
        from pytest_benchflow.agents.nop import Nop

        class Mine(Nop):
            name = "mine"
            uses_model = True

        def pytest_benchflow_agents():
            return {"mine": lambda name: Mine()}
        """
    )
    ids = bench.ids("--benchflow-conformance=invented", "--benchflow-conformance=mine")
    assert "conformance/invented/stream_cut::cut_ends" in ids
    assert "conformance/mine/crash::crash_leaves_nothing" in ids
    assert len(ids) == 2 * 17
    chosen = bench.ids("--benchflow-conformance=invented", "--benchflow-conformance=mine", "-k", "mine and crash")
    assert chosen == ["conformance/mine/crash::crash_leaves_nothing"]


def test_a_path_is_collected_too(bench: Bench) -> None:
    bench.pytester.makepyfile(test_mine="def test_of_the_users(): pass")
    ids = bench.ids("test_mine.py", "--benchflow-conformance=baseline")
    assert ids[0] == "test_mine.py::test_of_the_users"
    assert len(ids) == 18


def test_a_file_in_the_ini_value_lies_below_the_root(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest(bench)
    bench.ini("benchflow_conformance = mine/manifest.toml")
    (bench.path / "below").mkdir()
    monkeypatch.chdir(bench.path / "below")
    assert "conformance/invented/text::text" in bench.ids()


def test_workers_run_each_scenario_of_the_ini_value_once(bench: Bench) -> None:
    bench.ini("benchflow_conformance = baseline")
    done = bench.run("-n", "2", "-k", "text or initialize or cut", "-v")
    assert outcomes(done) == {"passed": 2, "skipped": 2}
    workers = [re.findall(r"\[(gw\d)\].*baseline/(\w+)::", line) for line in done.outlines]
    assert len({pair for found in workers for pair in found}) == 2


def test_the_ini_value_adds_to_what_is_collected(bench: Bench) -> None:
    bench.pytester.makepyfile(test_mine="def test_of_the_users(): pass")
    bench.ini("benchflow_conformance = baseline")
    assert {line.partition("::")[0].partition("/")[0] for line in bench.ids()} == {"test_mine.py", "conformance"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["basline"], "--benchflow-conformance is 'basline'; agents: nothing is named 'basline'; there are: baseline"),
        ([""], "--benchflow-conformance is ''; agents: nothing is named ''"),
        (["nop"], "--benchflow-conformance is 'nop', which calls no model; it takes an agent that does"),
        (["absent/manifest.toml"], "absent/manifest.toml"),
        (["baseline", "baseline"], "--benchflow-conformance names the agent baseline twice"),
    ],
    ids=["unknown", "empty", "no-model", "no-file", "twice"],
)
def test_what_cannot_be_checked_is_refused(bench: Bench, given: list[str], says: str) -> None:
    bench.refused(*(f"--benchflow-conformance={name}" for name in given), says=says)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (
            ["--benchflow-agent-timeout=60"],
            "an agent may take 60 s (--benchflow-agent-timeout) and be silent for 100 s",
        ),
        (
            ["--benchflow-idle-timeout=300"],
            "an agent may take 300 s (--benchflow-agent-timeout) and be silent for 300 s",
        ),
    ],
    ids=["too-short", "too-patient"],
)
def test_a_time_in_which_no_hang_shows_is_refused(bench: Bench, limits: list[str], says: str) -> None:
    bench.refused("--benchflow-conformance=baseline", *limits, says=says)


def test_an_unknown_sandbox_is_refused(bench: Bench) -> None:
    bench.refused("--benchflow-conformance=baseline", "--benchflow-sandbox=cloud", says="nothing is named 'cloud'")
