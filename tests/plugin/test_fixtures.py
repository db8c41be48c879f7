"""The ladder of fixtures in hand-written tests, and overriding each rung in a conftest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

SOLVES = """
import pytest

@pytest.mark.benchflow_task("tasks/hello")
def test_agent_solves_it(rollout):
    assert rollout.reward == 1
"""
ORACLE = """
import pytest

@pytest.fixture
def agent():
    return "oracle"
"""


def test_a_rollout_of_the_named_task(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile(SOLVES)
    done = bench.run("--benchflow-agent=oracle", "test_a_rollout_of_the_named_task.py")
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    assert "1/1 healthy" in done.stdout.str()
    assert [path.name for path in bench.rollouts()] == ["hello__oracle__none__default__1"]


def test_an_overridden_agent_is_the_one_that_works(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile(SOLVES)
    bench.pytester.makeconftest(ORACLE)
    done = bench.run()
    assert done.ret == 0
    done.assert_outcomes(passed=1)
    assert bench.config(bench.rollouts()[0])["agent"] == "oracle"


def test_an_overridden_rung_changes_task_items_too(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(ORACLE)
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=nop")
    assert done.parseoutcomes()["solved"] == 1


def test_an_override_that_makes_one_rollout_of_two_cells_is_refused_before_anything_runs(bench: Bench) -> None:
    bench.task()
    two = (
        "tasks",
        "-m",
        "rollout",
        "--benchflow-agent=nop",
        "--benchflow-agent=oracle",
        "--benchflow-sandbox=scripted",
    )
    bench.pytester.makeconftest(ORACLE)
    bench.refused(
        *two, says="conftest.py:3 is the same for 2 agents (nop, oracle), whose rollouts would be one; ask for"
    )
    assert not (bench.path / "jobs").exists()
    # Only a worker knows the items then.
    done = bench.run(*two, "-n", "2")
    assert done.ret == 2
    assert any(line.startswith("the fixture agent of ") for line in done.outlines), done.outlines
    assert bench.rollouts() == []
    # One that knows the cell may tell them apart.
    bench.pytester.makeconftest(
        ORACLE.replace("agent():", "agent(benchflow_cell):").replace('"oracle"', "benchflow_cell.agent")
    )
    assert bench.run(*two, "-k", "nop").ret == 0


def test_an_overridden_task_needs_no_marker(bench: Bench) -> None:
    bench.task("elsewhere", under="other")
    bench.pytester.makeconftest(
        ORACLE
        + """
from pathlib import Path
from pytest_benchflow.tasks.load import load_task

@pytest.fixture
def task():
    return load_task(Path(__file__).parent / "other" / "elsewhere")
"""
    )
    bench.pytester.makepyfile("def test_it(rollout, task): assert rollout.healthy and task.slug == 'elsewhere'")
    bench.run().assert_outcomes(passed=1)


def test_overridden_sandbox_and_model_are_handed_on(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(
        """
import pytest

@pytest.fixture
def sandbox():
    return "nowhere"

@pytest.fixture
def agent():
    return "nop"
"""
    )
    bench.pytester.makepyfile(SOLVES)
    done = bench.run()
    assert done.ret == 1
    assert "nothing is named 'nowhere'; there are: daytona, docker, local, scripted, ssh" in done.stdout.str()


def test_a_hand_written_test_runs_for_each_cell_of_the_matrix(bench: Bench) -> None:
    bench.task()
    file = bench.pytester.makepyfile(SOLVES)
    done = bench.run(file.name, "--benchflow-agent=oracle", "--benchflow-agent=nop", "-v", "-n", "2")
    assert done.parseoutcomes() == {"passed": 1, "failed": 1}
    done.stdout.fnmatch_lines(["*PASSED *::test_agent_solves_it?oracle-none-default-1?*"])
    done.stdout.fnmatch_lines(["*FAILED *::test_agent_solves_it?nop-none-default-1?*"])


def test_a_test_and_the_task_item_share_one_rollout(bench: Bench) -> None:
    bench.task()
    file = bench.pytester.makepyfile(SOLVES)
    done = bench.run("tasks", file.name, "--benchflow-agent=oracle")
    assert done.ret == 0
    assert len(bench.rollouts()) == 1
    assert not (bench.rollouts()[0] / "attempts").exists()


def test_a_sandbox_by_hand(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile(
        """
        import pytest

        machines = []

        @pytest.mark.benchflow_task("tasks/hello")
        def test_machine(sandbox):
            machines.append(sandbox)
            assert sandbox.exec(["sh", "-c", "echo here > note; pwd"]).stdout == "/app\\n"
            assert sandbox.exec(["cat", "note"]).stdout == "here\\n"
            done = sandbox.exec(["sh", "-c", "exit 3"])
            assert (done.exit_code, done.timed_out) == (3, False)
            # Nothing of the verifier or the solution is there.
            assert sandbox.exec(["ls", "/tests/test.sh"]).exit_code != 0

        @pytest.mark.benchflow_task("tasks/hello")
        def test_machine_is_new_in_each_test(sandbox):
            assert machines[0] is not sandbox
            assert sandbox.exec(["cat", "note"]).exit_code != 0

        @pytest.mark.benchflow_task("tasks/hello")
        def test_machine_is_not_made_unless_used(sandbox):
            assert sandbox.backend == "local"
        """
    )
    done = bench.run()
    assert done.ret == 0
    done.assert_outcomes(passed=3)


def test_a_gateway_by_hand(bench: Bench) -> None:
    bench.task()
    bench.write(bench.path, {"answers.toml": '[[turns]]\ntext = "hello from the script"\n'})
    bench.pytester.makepyfile(
        """
        import json
        import urllib.error
        import urllib.request

        import pytest

        def ask(proxy, token):
            request = urllib.request.Request(
                proxy.url + "/v1/chat/completions",
                json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello?"}]}).encode(),
                {"Authorization": "Bearer " + token, "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)

        @pytest.fixture
        def model(monkeypatch):
            monkeypatch.setenv("NO_PROXY", "*")

        @pytest.mark.benchflow_task("tasks/hello")
        def test_gateway(llm_proxy, model):
            assert llm_proxy.exchanges == []
            with pytest.raises(urllib.error.HTTPError, match="401"):
                ask(llm_proxy, "wrong")
            answer = ask(llm_proxy, llm_proxy.token)
            assert answer["choices"][0]["message"]["content"]
            # A refused request was received all the same, so it is recorded too.
            assert [each["response"]["status_code"] for each in llm_proxy.exchanges] == [401, 200]
        """
    )
    done = bench.run("--benchflow-model=script/answers.toml", "test_a_gateway_by_hand.py")
    done.assert_outcomes(passed=1)


TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "look"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "two files"},
]


@pytest.mark.parametrize(
    ("mode", "options", "outcome", "says"),
    [
        ("no-skill", [], {"passed": 1}, ""),
        ("no-skill", ["--benchflow-replay-strict"], {"failed": 1}, "409"),
        ("with-skill", [], {"skipped": 1}, "were recorded with-skill, not no-skill"),
    ],
    ids=["fits", "strict", "skills"],
)
def test_a_gateway_by_hand_is_that_of_its_cell(
    bench: Bench, mode: str, options: list[str], outcome: dict[str, int], says: str
) -> None:
    request = {"method": "POST", "path": "/v1/chat/completions", "body": {"model": "m", "messages": TALK}}
    said = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Two."}}]}
    lines = [{"recording": {"skill_mode": mode}}, {"request": request, "response": {"status_code": 200, "body": said}}]
    recording = "".join(json.dumps(line) + "\n" for line in lines)
    bench.write(bench.task(), {"recorded/baseline.jsonl": recording})
    differing = json.dumps({"model": "m", "messages": [*TALK[:2], {**TALK[2], "content": "no files"}]})
    bench.pytester.makepyfile(
        f"""
        import urllib.request

        import pytest

        @pytest.mark.benchflow_task("tasks/hello")
        def test_gateway(llm_proxy, monkeypatch):
            monkeypatch.setenv("NO_PROXY", "*")
            head = {{"Authorization": "Bearer " + llm_proxy.token}}
            body = {differing!r}.encode()
            with urllib.request.urlopen(
                urllib.request.Request(llm_proxy.url + "/v1/chat/completions", body, head)
            ) as answer:
                assert b"Two." in answer.read()
        """
    )
    done = bench.run("-rs", "-k", "test_gateway", *options)
    done.assert_outcomes(**outcome)
    assert says in done.stdout.str()


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ("", "needs a marker that names the task"),
        ("@pytest.mark.benchflow_task", "it was given ()"),
        ("@pytest.mark.benchflow_task(1)", "it was given (1)"),
        ('@pytest.mark.benchflow_task("tasks/hello", n=2)', "it was given ('tasks/hello', n=2)"),
        ('@pytest.mark.benchflow_task("tasks/nothing")', "tasks/nothing: there is no such directory"),
    ],
    ids=["none", "empty", "number", "keyword", "missing-task"],
)
def test_a_wrong_marker_says_what_is_accepted(bench: Bench, marker: str, says: str) -> None:
    bench.task()
    bench.pytester.makepyfile(f"import pytest\n{marker}\ndef test_it(task): pass\n\ndef test_other(): pass\n")
    done = bench.look()
    done.assert_outcomes(passed=1, errors=1)
    text = done.stdout.str()
    assert says in text
    assert "Traceback" not in text
    assert "fixtures.py" not in text


def test_every_rung_is_described(bench: Bench) -> None:
    text = bench.look("--fixtures").stdout.str()
    for name in ("task", "sandbox", "llm_proxy", "agent", "rollout"):
        assert f"\n{name} -- " in text
    assert "@pytest.mark.benchflow_task(path)" in bench.look("--markers").stdout.str()


def test_a_task_that_is_not_there_is_one_sentence(bench: Bench) -> None:
    file = bench.pytester.makepyfile(SOLVES)
    done = bench.run(file.name)
    text = done.stdout.str().partition("ERRORS")[2].partition("short test summary")[0]
    assert text.count("there is no such directory; a task is a directory with task.toml or task.md") == 1
    assert "During handling" not in text


def test_a_header_says_what_will_run_where_only_tests_ask_for_it(bench: Bench) -> None:
    bench.task()
    bench.pytester.makepyfile(SOLVES)
    done = bench.look("--collect-only")
    assert sum("benchflow: baseline · replay · local · " in line for line in done.outlines) == 1
    assert "benchflow: " not in bench.look("--collect-only", "-k", "nothing").stdout.str()
