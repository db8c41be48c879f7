"""Whatever a task, a verifier or an agent does, the error is clear and the artifacts are complete."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import TaskError, UnsupportedError, UsageError
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout
from tests.e2e.program import ProgramAgent

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import AgentContext
    from pytest_benchflow.records.rollout import Rollout
    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

ALWAYS = [
    "config.json",
    "result.json",
    "results.jsonl",
    "prompts.json",
    "timing.json",
    "trajectory/llm_trajectory.jsonl",
    "trajectory/acp_trajectory.jsonl",
]


def run(task: Path, jobs: Path, **asked: Any) -> Rollout:
    return asyncio.run(run_rollout(RolloutConfig(task=task, jobs_dir=jobs, job_name="job", **asked)))


def assert_complete(rollout: Rollout) -> None:
    assert [name for name in ALWAYS if not (rollout.path / name).is_file()] == []
    row = json.loads((rollout.path / "results.jsonl").read_text())
    assert row["info"]["task_name"] == rollout.result["task_name"]
    for name in ("llm_trajectory", "acp_trajectory"):
        for line in (rollout.path / "trajectory" / f"{name}.jsonl").read_text().splitlines():
            json.loads(line)


@pytest.mark.parametrize(
    ("body", "verdict", "category", "reward"),
    [
        pytest.param(
            'open("answer", "w").write("42")\nsay("x" * 5_000_000)\nanswer()', "pass", None, 1.0, id="5-mb-line"
        ),
        pytest.param(
            'sys.stdout.buffer.write(b"\\xff\\xfe" * 100 + b"\\n")\nsys.stderr.buffer.write(b"\\x80" * 100)\nanswer()',
            "fail",
            None,
            0.0,
            id="invalid-utf-8",
        ),
        pytest.param('print("noise " * 1000)\n' * 50 + "answer()", "fail", None, 0.0, id="chatter-on-stdout"),
        pytest.param("time.sleep(600)", "unhealthy", "timeout", 0.0, id="never-answers"),
        pytest.param('say("working")\nsys.exit(3)', "unhealthy", "agent", 0.0, id="exits-in-mid-turn"),
        pytest.param('say("\\ud800 lone surrogate")\nanswer()', "fail", None, 0.0, id="lone-surrogate"),
    ],
)
def test_an_agent_that_misbehaves(
    make_task: MakeTask, tmp_path: Path, *, body: str, verdict: str, category: str | None, reward: float
) -> None:
    task = make_task(agent_timeout=4)
    rollout = run(task, tmp_path / "jobs", agent=ProgramAgent(body))
    assert_complete(rollout)
    assert rollout.verdict == verdict, rollout.result["checks"]
    assert rollout.reward == reward, rollout.result
    if category:
        assert category in rollout.result["error_category"]
        assert rollout.result["error"]
    else:
        assert rollout.result["error"] is None


@pytest.mark.parametrize(
    ("verifier", "category", "said"),
    [
        pytest.param("echo nan > /logs/verifier/reward.txt", "invalid_reward", "nan", id="nan"),
        pytest.param(
            """echo '{"reward": NaN}' > /logs/verifier/reward.json""", "invalid_reward", "JSON", id="nan-json"
        ),
        pytest.param("echo hello", "no_reward", "reward.txt", id="no-reward"),
        pytest.param("echo oops >&2; exit 7", "crash", "oops", id="crash"),
        pytest.param("sleep 60", "timeout", "within", id="too-slow"),
        pytest.param("echo 0 > /logs/verifier/reward.txt; sleep 60", "timeout", "within", id="zero-then-too-slow"),
        pytest.param("echo 0 > /logs/verifier/reward.txt; kill -9 $$", "crash", "killed", id="zero-then-killed"),
        pytest.param("echo 0 > /logs/verifier/reward.txt; uvx pytest", "bootstrap", "uvx", id="runner-missing"),
        pytest.param("ln -s /etc/hostname /logs/verifier/reward.txt", "no_reward", "reward.txt", id="link-as-reward"),
        pytest.param("rm -rf /logs/verifier", "no_reward", "gone", id="removes-its-directory"),
        pytest.param("mkdir -p /logs/verifier/.incoming/.incoming", "no_reward", "reward.txt", id="hidden-directories"),
        pytest.param("mkfifo /logs/verifier/reward.json", "no_reward", "reward.txt", id="pipe-as-reward"),
    ],
)
def test_a_verifier_without_a_score_is_never_a_zero(
    make_task: MakeTask, tmp_path: Path, verifier: str, category: str, said: str
) -> None:
    task = make_task(verifier=f"#!/bin/sh\n{verifier}\n")
    manifest = (task / "task.toml").read_text()
    (task / "task.toml").write_text(manifest.replace("[verifier]\ntimeout_sec = 30", "[verifier]\ntimeout_sec = 2"))
    rollout = run(task, tmp_path / "jobs", agent="oracle")
    assert_complete(rollout)
    assert rollout.reward is None
    assert rollout.verdict == "unhealthy"
    assert rollout.result["verdict_category"] == "verifier"
    assert rollout.result["verifier_error_category"] == category
    assert said in rollout.result["verifier_error"]


def test_a_stale_reward_is_not_a_score(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task(verifier="#!/bin/sh\nexit 1\n")
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n")
    rollout = run(task, tmp_path / "jobs", agent="oracle")
    assert rollout.reward is None
    assert rollout.result["verifier_error"]


def test_tests_planted_by_the_agent_do_not_run(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task(
        verifier="#!/bin/sh\nls /tests\n[ -e /tests/planted ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n"
    )
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\nmkdir -p /tests\ntouch /tests/planted\n")
    assert run(task, tmp_path / "jobs", agent="oracle").reward == 0


def test_an_unset_host_variable_that_nobody_uses_harms_nothing(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    with (task / "task.toml").open("a") as file:
        file.write('\n[environment.env]\nJUDGE_KEY = "${SURELY_UNSET_KEY}"\nMODE = "${SURELY_UNSET_MODE:-plain}"\n')
    (task / "solution" / "solve.sh").write_text('#!/bin/sh\n[ "$MODE" = plain ] && echo 42 > /app/answer\n')
    assert run(task, tmp_path / "jobs", agent="oracle").verdict == "pass"


def test_a_link_out_of_the_task_is_refused_before_anything_starts(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    (tmp_path / "secret").write_text("host secret")
    (task / "tests" / "data").symlink_to(tmp_path / "secret")
    with pytest.raises(TaskError, match="data"):
        run(task, tmp_path / "jobs", agent="nop")


def test_a_task_whose_name_climbs_stays_in_its_job(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    text = (task / "task.toml").read_text()
    (task / "task.toml").write_text(text.replace("invented/answer", "../../x"))
    try:
        rollout = run(task, tmp_path / "jobs", agent="oracle")
    except TaskError as error:
        assert "../../x" in str(error)
    else:
        assert rollout.path.parent == tmp_path / "jobs" / "job"


def test_what_cannot_run_here_is_refused_with_the_reason(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    (task / "environment" / "Dockerfile").write_text("FROM golang:1.22\n")
    with pytest.raises(UnsupportedError, match=r"needs docker: FROM golang:1.22"):
        run(task, tmp_path / "jobs", agent="nop")
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        pytest.param({"agent": "nobody"}, "baseline", id="agent"),
        pytest.param({"sandbox": "moon"}, "local", id="sandbox"),
        pytest.param({"agent": "baseline", "model": "nonsense"}, "openai/<model>", id="model"),
        pytest.param({"skills": "some"}, "without", id="skills"),
        pytest.param({"trial": 0}, "1", id="trial"),
    ],
)
def test_an_unknown_name_is_answered_with_those_that_exist(
    make_task: MakeTask, tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run(make_task(), tmp_path / "jobs", **asked)


def test_an_earlier_attempt_is_kept_whole(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    first = run(task, tmp_path / "jobs", agent="oracle").result["started_at"]
    again = run(task, tmp_path / "jobs", agent="oracle")
    kept = json.loads((again.path / "attempts" / "1" / "result.json").read_text())
    assert kept["started_at"] == first
    assert again.result["started_at"] > first


STUBBORN = """
import os, time, urllib.error, urllib.request
base, key = os.environ["BENCHFLOW_PROVIDER_BASE_URL"], os.environ["BENCHFLOW_PROVIDER_API_KEY"]
asked = {"model": "m", "messages": [{"role": "user", "content": "something that was never recorded"}]}
while True:
    url, headers = base + "/v1/chat/completions", {"Authorization": "Bearer " + key}
    call = urllib.request.Request(url, json.dumps(asked).encode(), headers)
    try:
        urllib.request.urlopen(call)
    except urllib.error.HTTPError:
        time.sleep(0.2)
"""


class StubbornAgent(ProgramAgent):
    """An agent that asks its model something else, again and again."""

    name = "stubborn"
    uses_model = True
    api_dialect = "chat"

    def environment(self, context: AgentContext) -> dict[str, str]:
        return {
            "BENCHFLOW_PROVIDER_BASE_URL": str(context.base_url),
            "BENCHFLOW_PROVIDER_API_KEY": str(context.token),
        }


def test_a_request_that_was_never_recorded_ends_the_rollout(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task(agent_timeout=60)
    (task / "recorded").mkdir()
    exchange = {
        "request": {
            "method": "POST",
            "path": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": "Write 42 to /app/answer."}]},
        },
        "response": {
            "status_code": 200,
            "body": {
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}]
            },
        },
    }
    (task / "recorded" / "stubborn.jsonl").write_text(json.dumps(exchange) + "\n")
    rollout = run(task, tmp_path / "jobs", agent=StubbornAgent(STUBBORN), model="replay")
    assert_complete(rollout)
    assert rollout.verdict == "unhealthy"
    assert rollout.result["error_category"] == "replay_mismatch"
    assert "something that was never recorded" in rollout.result["error"]
    assert rollout.reward is None
    assert rollout.result["timing"]["agent_execution"] < 30
    assert {exchange["response"]["status_code"] for exchange in rollout.exchanges} == {409}


def test_what_an_agent_plants_for_the_verifiers_python_is_not_loaded(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task(verifier='#!/bin/sh\npython3 -c "print(0)" > $BENCHFLOW_REWARD_TEXT\n')
    (task / "solution" / "solve.sh").write_text(
        "#!/bin/sh\n"
        "cd \"$(python3 -c 'import site; print(site.getusersitepackages())')\" 2>/dev/null ||\n"
        '  { d=$(python3 -c \'import site; print(site.getusersitepackages())\'); mkdir -p "$d"; cd "$d"; }\n'
        "echo 'print(1); import os; os._exit(0)' > usercustomize.py\n"
        "echo /tmp/evil.so > /etc/ld.so.preload || true\n"
    )
    assert run(task, tmp_path / "jobs", agent="oracle").reward == 0


def test_artifacts_too_large_to_keep_do_not_undo_a_score(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\ntruncate -s 5G /logs/artifacts/sparse\n")
    rollout = run(task, tmp_path / "jobs", agent="oracle")
    assert rollout.reward == 0
    assert rollout.result["error"] is None
    assert "4 GiB" in " ".join(rollout.result["warnings"])
    assert not (rollout.path / "artifacts" / "sparse").exists()


def test_two_tasks_whose_directories_are_named_alike_have_a_rollout_each(make_task: MakeTask, machine: Machine) -> None:
    solved, unsolved = make_task("a b"), make_task("a-b")
    (unsolved / "solution" / "solve.sh").write_text("#!/bin/sh\n")
    root = solved.parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    run = machine.pytest("tasks", "--benchflow-agent=oracle", "-k", "rollout", "-q", cwd=root)
    output, _ = run.communicate(timeout=60)
    rewards = [json.loads(path.read_text())["rewards"]["reward"] for path in root.glob("jobs/*/*/result.json")]
    assert sorted(rewards) == [0, 1], output
    assert run.returncode == 1, output


def test_concurrent_rollouts_of_one_cell_never_share_a_directory(make_task: MakeTask, tmp_path: Path) -> None:
    async def three() -> list[Any]:
        config = RolloutConfig(task=make_task(), agent="nop", jobs_dir=tmp_path / "jobs")
        named = RolloutConfig(task=config.task, agent="nop", jobs_dir=tmp_path / "jobs", job_name="same")
        apart = await asyncio.gather(run_rollout(config), run_rollout(config), run_rollout(config))
        together = await asyncio.gather(run_rollout(named), run_rollout(named), return_exceptions=True)
        return [*apart, *together]

    *apart, first, second = asyncio.run(three())
    assert len({rollout.path for rollout in apart}) == 3
    assert {rollout.verdict for rollout in apart} == {"fail"}
    assert not isinstance(first, BaseException)
    assert isinstance(second, UsageError)
    assert "being written by another rollout" in str(second)


@pytest.mark.parametrize("name", ["JUDGE", "JUDGE_KEY"])
def test_what_a_verifier_gets_from_the_host_is_in_no_file(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    secret = "host-value-31415926"
    monkeypatch.setenv("SOME_HOST_VARIABLE", secret)
    shown = (
        f'echo "${name}" | tee /logs/verifier/note.txt > /logs/artifacts/note; printf "\\377${name}" > /logs/verifier/b'
    )
    task = make_task(verifier=f"#!/bin/sh\n{shown}\necho ${name}; echo 0 > /logs/verifier/reward.txt\n")
    with (task / "task.toml").open("a") as file:
        file.write(f'\n[verifier.env]\n{name} = "${{SOME_HOST_VARIABLE}}"\n')
    rollout = run(task, tmp_path / "jobs", agent="nop")
    assert rollout.reward == 0
    files = [path for path in rollout.path.rglob("*") if path.is_file()]
    assert {"note.txt", "note", "b", "test-stdout.txt"} <= {path.name for path in files}
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert (rollout.path / "verifier" / "b").read_bytes().startswith(b"\xff[REDACTED]")


def test_an_image_with_a_user_of_its_own_is_no_hindrance(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task()
    (task / "environment" / "Dockerfile").write_text("FROM debian\nWORKDIR /app\nUSER nobody\n")
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\nid -un > /tmp/who\nls /solution\n")
    rollout = run(task, tmp_path / "jobs", agent="oracle")
    assert rollout.verdict == "fail", rollout.result


def test_a_test_runners_settings_in_the_root_directory_do_not_count(make_task: MakeTask, tmp_path: Path) -> None:
    task = make_task(
        verifier="#!/bin/sh\nls /conftest.py /pytest.ini /setup.cfg && r=1 || r=0\necho $r > $BENCHFLOW_REWARD_TEXT\n"
    )
    (task / "solution" / "solve.sh").write_text("#!/bin/sh\ntouch /conftest.py /pytest.ini /setup.cfg\n")
    assert run(task, tmp_path / "jobs", agent="oracle").reward == 0


@pytest.mark.parametrize("ruin", ["rm -rf /app", "rm -rf /app && mkfifo /app", "rm -rf /app && ln -s /nowhere /app"])
def test_an_agent_that_removes_its_working_directory_has_failed(make_task: MakeTask, tmp_path: Path, ruin: str) -> None:
    task = make_task()
    (task / "solution" / "solve.sh").write_text(f"#!/bin/sh\ncd /\n{ruin}\n")
    rollout = run(task, tmp_path / "jobs", agent="oracle")
    assert (rollout.verdict, rollout.reward) == ("fail", 0), rollout.result["verifier_error"]
