"""BENCHFLOW_AGENTS_DIR: agents that others declared run as those of the catalogue do."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.training.row import terminal_tools
from tests.plugin.agentsdir import declare
from tests.plugin.bench import TASK_TOML, outcomes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench

MODEL = "--benchflow-model=script/answers.toml"


@pytest.fixture
def agents(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that the variable names, beside a task and a model that answers with its solution."""
    bench.task()
    bench.write(bench.path, {"answers.toml": '[[turns]]\ntext = "done"\nrepeat = true\n'})
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", "agents")
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(bench.path / "cache"))
    return bench.path / "agents"


def test_an_agent_of_others_is_installed_and_run_under_its_name_or_alias(bench: Bench, agents: Path) -> None:
    file = declare(agents)
    done = bench.run("tasks", MODEL, "--benchflow-agent=post", "-m", "rollout")
    assert outcomes(done) == {"solved": 1}
    done.stdout.fnmatch_lines(
        ["benchflow: courier · *", "benchflow: courier is that of agents/acp/courier/manifest.toml"]
    )
    (rollout,) = bench.rollouts()
    assert bench.config(rollout)["agent"] == "courier"
    assert bench.result(rollout)["rewards"] == {"reward": 1.0}
    digests = json.loads((rollout.parent / "job.json").read_text())["digests"]
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digests["agents"] == {"courier": sha256}
    assert bench.config(rollout)["agent_manifest"] == {
        "file": str(file),
        "sha256": sha256,
        "source": None,
        "terminal_tools": [],
    }


def given(rollout: Path) -> dict[str, Any]:
    """Return what the agent told on stderr of what it was given."""
    lines = (rollout / "agent/stderr.txt").read_text().splitlines()
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("given ")).removeprefix("given "))
    return found


def test_what_its_installation_left_and_its_model_reach_the_agent(bench: Bench, agents: Path) -> None:
    declare(agents)
    arguments = ("tasks", MODEL, "--benchflow-agent=courier", "-m", "rollout", "--benchflow-agent-env=COURIER_TENANT=7")
    for _ in range(2):
        assert outcomes(bench.run(*arguments)) == {"solved": 1}
    for rollout in bench.rollouts():
        # Each rollout has settings of its own: the first one emptied them.
        told = given(rollout)
        assert told.pop("environment")["COURIER_TENANT"] == "7"
        assert told == {
            "told": "benchflow/scripted",
            "settings": {"made by": "install_cmd"},
            "program": "/opt/benchflow/home/.local/bin/courier",
        }


def test_it_takes_the_place_of_the_catalogues_agent_of_that_name(bench: Bench, agents: Path) -> None:
    declare(agents, name="openhands", aliases=["oh"])
    done = bench.run("tasks", MODEL, "--benchflow-agent=oh", "-m", "rollout")
    assert outcomes(done) == {"solved": 1}
    done.stdout.fnmatch_lines(["benchflow: openhands is that of agents/acp/openhands/manifest.toml"])
    assert given(bench.rollouts()[0])["settings"] == {"made by": "install_cmd"}


def test_the_catalogues_aliases_go_with_their_agent(bench: Bench, agents: Path) -> None:
    declare(agents, name="openhands", aliases=None)
    bench.refused("tasks", "--benchflow-agent=oh", says="--benchflow-agent is 'oh'; it takes one of: baseline,")


def test_workers_know_the_agents_too(bench: Bench, agents: Path) -> None:
    declare(agents)
    done = bench.run("tasks", MODEL, "--benchflow-agent=post", "-m", "rollout", "-n", "1")
    assert outcomes(done) == {"solved": 1}


def test_a_hand_written_test_names_it(bench: Bench, agents: Path) -> None:
    declare(agents)
    bench.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.benchflow_task("tasks/hello")
        def test_it(rollout):
            assert (rollout.config["agent"], rollout.reward) == ("courier", 1.0)
        """
    )
    done = bench.run(MODEL, "--benchflow-agent=post", "test_a_hand_written_test_names_it.py")
    assert outcomes(done) == {"passed": 1}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"name": "oracle"},
            "BENCHFLOW_AGENTS_DIR: agents/acp/courier/manifest.toml: 'oracle' is taken by the agent oracle",
        ),
        ({"name": "baseline"}, "'baseline' is taken by the agent baseline, which it does not replace"),
        ({"aliases": ["nop"]}, "'nop' is taken by the agent nop"),
        ({"aliases": ["openhands"]}, "'openhands' is taken by the agent openhands"),
        ({"name": "oh"}, "'oh' is taken by an alias of the agent openhands"),
        ({"contract_version": "2.0"}, "contract_version is '2.0'; this package reads version 1.x"),
        ({"launch_cmd": None}, "courier/manifest.toml: launch_cmd is missing"),
        ({"name": "../courier"}, "'../courier' is no name"),
    ],
    ids=["program", "file", "alias-of-program", "alias-of-name", "name-of-alias", "major", "missing", "path"],
)
def test_a_wrong_directory_is_refused_as_a_whole(
    bench: Bench, agents: Path, changes: dict[str, Any], says: str
) -> None:
    declare(agents, name="innocent", aliases=None)
    wrong = declare(bench.path / "elsewhere", **changes).read_text()
    declare(agents).write_text(wrong)
    bench.refused("tasks", "--benchflow-agent=innocent", says=says)


def test_two_of_one_name_are_refused_naming_both_files(bench: Bench, agents: Path) -> None:
    declare(agents)
    declare(agents / "more", aliases=["letter"])
    bench.refused(
        "tasks",
        "--benchflow-agent=courier",
        says="agents/more/acp/courier/manifest.toml: 'courier' is the name here and the name in "
        "agents/acp/courier/manifest.toml",
    )


def test_what_ends_its_work_is_known_without_its_manifest(
    bench: Bench, agents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = declare(agents)
    file.write_text(file.read_text() + '\n[host]\nterminal_tools = ["handed_over"]\n')
    assert outcomes(bench.run("tasks", MODEL, "--benchflow-agent=post", "-m", "rollout")) == {"solved": 1}
    monkeypatch.delenv("BENCHFLOW_AGENTS_DIR")
    config = bench.config(bench.rollouts()[0])
    assert {"handed_over", "finish"} <= terminal_tools({}, config)
    assert "handed_over" not in terminal_tools({}, config | {"agent_manifest": None})
    done = bench.run(f"--benchflow-review={bench.rollouts()[0]}")
    done.stdout.fnmatch_lines(["1 rollout: 1 healthy, 0 unhealthy"])


@pytest.mark.parametrize(
    ("options", "environment", "counts"),
    [
        ((), "", {"errors": 1}),
        (("--benchflow-agent-env=COURIER_TENANT=7",), "", {"solved": 1}),
        ((), '[environment.env]\nCOURIER_TENANT = "7"\n', {"solved": 1}),
    ],
    ids=["missing", "from-the-user", "from-the-task"],
)
def test_a_variable_that_only_the_user_has_is_asked_for_before_anything_starts(
    bench: Bench, agents: Path, options: tuple[str, ...], environment: str, counts: dict[str, int]
) -> None:
    bench.task(toml=TASK_TOML + environment)
    declare(agents, requires_env=["COURIER_TENANT", "COURIER_API_KEY"])
    done = bench.run("tasks", MODEL, "--benchflow-agent=courier", "-m", "rollout", *options)
    assert outcomes(done) == counts, done.outlines
    if not bench.rollouts():
        text = done.stdout.str()
        assert "the agent courier needs COURIER_TENANT, which the gateway does not supply; pass " in text
        assert "Traceback" not in text


@pytest.mark.parametrize("made", [True, False], ids=["empty", "absent"])
def test_a_directory_without_manifests_is_refused(bench: Bench, agents: Path, made: bool) -> None:
    if made:
        agents.mkdir()
    bench.refused(
        "tasks", says=f"BENCHFLOW_AGENTS_DIR: agents {'holds no manifest.toml' if made else 'is no directory'}"
    )


def test_a_session_that_is_about_nothing_of_this_reads_no_directory(bench: Bench, agents: Path) -> None:
    agents.mkdir()
    bench.pytester.makepyfile("def test_pass(): pass")
    bench.look("test_a_session_that_is_about_nothing_of_this_reads_no_directory.py").assert_outcomes(passed=1)
