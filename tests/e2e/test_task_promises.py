"""What a task declares happens when it runs: healthchecks, set-up, steps, users, artifacts, limits, secrets."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from pytest_benchflow.rollout.config import RolloutConfig
from pytest_benchflow.rollout.run import run_rollout
from tests.e2e.program import ProgramAgent

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout

REWARD = "echo {} > /logs/verifier/reward.txt\n"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can run as several users")


def write_task(directory: Path, manifest: str, files: dict[str, str]) -> Path:
    """Write a task whose parts are given by path; a missing solution does nothing, a missing verifier gives 1."""
    plain = {
        "task.toml": manifest,
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\n",
    }
    if "[[steps]]" not in manifest:
        plain |= {
            "instruction.md": "Do it.\n",
            "solution/solve.sh": "true\n",
            "tests/test.sh": REWARD.format(1),
        }
    for name, text in (plain | files).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def step(name: str, reward: float = 1) -> dict[str, str]:
    return {
        f"steps/{name}/instruction.md": f"Do {name}.\n",
        f"steps/{name}/solution/solve.sh": f"echo {name} >> /logs/artifacts/done\n",
        f"steps/{name}/tests/test.sh": REWARD.format(reward),
    }


def run(task: Path, **asked: Any) -> Rollout:
    jobs = task.parent / "jobs"
    return asyncio.run(
        run_rollout(RolloutConfig(task=task, jobs_dir=jobs, job_name="job", **{"agent": "oracle"} | asked))
    )


def prompted(rollout: Rollout) -> list[str | None]:
    return [prompt["step"] for prompt in json.loads((rollout.path / "prompts.json").read_text())]


HEALTHCHECK = """\
[environment.healthcheck]
command = "echo probed >> /logs/artifacts/probes; [ $(wc -l < /logs/artifacts/probes) -ge {needed} ]"
interval_sec = 0.05
start_interval_sec = 0.05
timeout_sec = 5
retries = {retries}
"""


def probes(rollout: Rollout) -> int:
    return len((rollout.path / "artifacts" / "probes").read_text().splitlines())


def test_the_agent_starts_when_the_healthcheck_succeeds(tmp_path: Path) -> None:
    rollout = run(write_task(tmp_path / "task", HEALTHCHECK.format(needed=3, retries=2), {}))
    assert rollout.verdict == "pass", rollout.result
    assert probes(rollout) == 3


def test_failures_in_the_start_period_do_not_count(tmp_path: Path) -> None:
    manifest = HEALTHCHECK.format(needed=4, retries=0) + "start_period_sec = 30\n"
    rollout = run(write_task(tmp_path / "task", manifest, {}))
    assert rollout.verdict == "pass", rollout.result
    assert probes(rollout) == 4
    assert rollout.result["timing"]["environment_setup"] < 30, "a success ends the start period"


def test_no_agent_starts_where_the_healthcheck_fails(tmp_path: Path) -> None:
    rollout = run(write_task(tmp_path / "task", HEALTHCHECK.format(needed=9, retries=2), {}))
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    assert "wc -l" in rollout.result["error"]
    assert "3 times" in rollout.result["error"], "the first probe and two retries"
    assert rollout.reward is None
    assert not (rollout.path / "prompts.json").exists() or prompted(rollout) == []


STEPS = '[[steps]]\nname = "one"\n{}\n[[steps]]\nname = "two"\n'


def test_the_setup_script_of_a_step_runs_before_its_agent(tmp_path: Path) -> None:
    setup = {"steps/two/workdir/setup.sh": "cat /logs/artifacts/done > /app/seen\n", "steps/two/workdir/data": "laid\n"}
    solve = {"steps/two/solution/solve.sh": "cat /app/seen /app/data >> /logs/artifacts/done\n"}
    rollout = run(write_task(tmp_path / "task", STEPS.format(""), step("one") | step("two") | setup | solve))
    assert rollout.verdict == "pass", rollout.result
    assert (rollout.path / "artifacts" / "done").read_text() == "one\none\nlaid\n"
    assert prompted(rollout) == ["one", "two"]


def test_a_setup_script_that_fails_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    setup = {"steps/two/workdir/setup.sh": "echo no disk >&2\nexit 3\n"}
    rollout = run(write_task(tmp_path / "task", STEPS.format(""), step("one") | step("two") | setup))
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")
    for said in ("setup.sh", "two", "no disk"):
        assert said in rollout.result["error"]
    assert rollout.reward is None
    assert prompted(rollout) == ["one"]


@pytest.mark.parametrize(
    ("first", "least", "ran", "reward"),
    [
        pytest.param(0.5, "0.5", ["one", "two"], 0.75, id="reached"),
        pytest.param(0.4, "0.5", ["one"], 0.2, id="missed"),
        pytest.param(0.4, "{ reward = 0.5 }", ["one"], 0.2, id="missed-by-name"),
    ],
)
def test_a_step_below_its_least_reward_ends_the_task(
    tmp_path: Path, first: float, least: str, ran: list[str], reward: float
) -> None:
    manifest = STEPS.format(f"min_reward = {least}")
    rollout = run(write_task(tmp_path / "task", manifest, step("one", first) | step("two")))
    assert rollout.verdict == "fail", rollout.result
    assert prompted(rollout) == ran
    assert rollout.reward == pytest.approx(reward)
    assert [name for name in ("one", "two") if (rollout.path / "verifier" / name).is_dir()] == ran


def test_the_time_limit_of_a_first_step_is_no_fault_of_the_verifier(tmp_path: Path) -> None:
    manifest = "[agent]\ntimeout_sec = 1\n" + STEPS.format("")
    slow = {"steps/one/solution/solve.sh": "sleep 30\n"}
    rollout = run(write_task(tmp_path / "task", manifest, step("one") | step("two") | slow))
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("normal_timeout", None), rollout.result
    assert rollout.reward == 0.5
    assert prompted(rollout) == ["one"]


@needs_root
@pytest.mark.parametrize(
    ("agent", "verifier"),
    [
        pytest.param("nobody", "root", id="agent-is-nobody"),
        pytest.param("root", "nobody", id="verifier-is-nobody"),
        pytest.param(1234, 4321, id="by-number"),
    ],
)
def test_agent_and_verifier_run_as_the_users_that_the_task_names(
    tmp_path: Path, agent: str | int, verifier: str | int
) -> None:
    manifest = f"[agent]\nuser = {json.dumps(agent)}\n[verifier]\nuser = {json.dumps(verifier)}\n"
    flag = "-u" if isinstance(agent, int) else "-un"
    files = {
        "solution/solve.sh": f"id {flag} > /logs/artifacts/agent\n",
        "tests/test.sh": f"id {flag} > /logs/verifier/user\n" + REWARD.format(1),
    }
    rollout = run(write_task(tmp_path / "task", manifest, files))
    assert rollout.verdict == "pass", rollout.result
    assert (rollout.path / "artifacts" / "agent").read_text().strip() == str(agent)
    assert (rollout.path / "verifier" / "user").read_text().strip() == str(verifier)


def test_artifacts_go_where_the_task_says_without_what_it_leaves_out(tmp_path: Path) -> None:
    manifest = (
        'artifacts = ["/app/report.txt", {source = "/app/out", destination = "kept/out", exclude = ["*.tmp", "cache"]},'
        ' "/app/missing", "beside.txt"]\n'
    )
    solve = (
        "mkdir -p out/cache out/deep\necho a > out/a\necho t > out/deep/b.tmp\necho c > out/cache/c\n"
        "echo d > out/deep/d\necho r > report.txt\necho n > not-asked-for\necho b > beside.txt\n"
        "echo x > /logs/artifacts/always\n"
    )
    rollout = run(write_task(tmp_path / "task", manifest, {"solution/solve.sh": solve}))
    assert rollout.verdict == "pass", rollout.result
    place = rollout.path / "artifacts"
    kept = {path.relative_to(place).as_posix(): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert kept == {
        "always": "x\n",
        "beside.txt": "b\n",
        "kept/out/a": "a\n",
        "kept/out/deep/d": "d\n",
        "report.txt": "r\n",
    }


def test_an_agent_that_falls_silent_is_no_result_whatever_it_scored(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", "", {"tests/test.sh": "[ -f /app/done ] && " + REWARD.format(1)})
    agent = ProgramAgent('open("done", "w")\nsay("working")\ntime.sleep(600)')
    rollout = run(task, agent=agent, idle_timeout=2)
    assert rollout.result["error_category"] == "idle_timeout"
    assert "2" in rollout.result["error"]
    assert rollout.result["idle_before_timeout_s"] >= 2
    assert rollout.reward == 1
    assert (rollout.verdict, rollout.result["verdict_category"]) == ("unhealthy", "infra")


def test_limits_and_what_became_of_them_are_recorded(tmp_path: Path) -> None:
    manifest = (
        "[agent]\ntimeout_sec = 50\n[verifier]\ntimeout_sec = 40\n"
        "[environment]\ncpus = 1\nmemory_mb = 512\nstorage_mb = 64\n"
    )
    rollout = run(write_task(tmp_path / "task", manifest, {}), agent_timeout=30, idle_timeout=20)
    limits = json.loads((rollout.path / "config.json").read_text())["limits"]
    (seconds,) = limits["seconds"].values()
    assert {name: seconds[name] for name in ("agent", "idle", "verifier")} == {"agent": 30, "idle": 20, "verifier": 40}
    assert {"cpus": 1, "memory_mb": 512, "storage_mb": 64}.items() <= {
        name: limit["asked"] for name, limit in limits["sandbox"].items()
    }.items()
    assert all(limit["applied"] for limit in limits["sandbox"].values())


DOCUMENT_VERIFIER = """\
set -eu
cat "$BENCHFLOW_VERIFIER_DIR/expected"
echo '{"reward": 1, "style": 0.5}' > "$BENCHFLOW_REWARD_JSON"
echo 0 > "$BENCHFLOW_REWARD_TEXT"
echo '{"why": "fine"}' > "$BENCHFLOW_REWARD_DETAILS_JSON"
echo '{"results": {"summary": {"tests": 3}}}' > "$BENCHFLOW_CTRF_JSON"
"""


def test_a_document_task_tells_its_verifier_where_things_are(tmp_path: Path) -> None:
    document = "---\nschema_version: '1.3'\ntask:\n  name: invented/document\n---\n\nDo it.\n"
    task = tmp_path / "task"
    for name, text in {
        "task.md": document,
        "environment/Dockerfile": "FROM debian:12-slim\nWORKDIR /app\n",
        "oracle/solve.sh": "true\n",
        "verifier/test.sh": DOCUMENT_VERIFIER,
        "verifier/expected": "what is expected\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    rollout = run(task)
    assert rollout.verdict == "pass", rollout.result
    assert rollout.result["rewards"] == {"reward": 1, "style": 0.5}
    kept = {path.name: path.read_text() for path in (rollout.path / "verifier").iterdir()}
    assert kept["test-stdout.txt"] == "what is expected\n"
    assert json.loads(kept["ctrf.json"])["results"]["summary"]["tests"] == 3
    assert json.loads(kept["reward-details.json"]) == {"why": "fine"}


# A name that says nothing, and a value that JSON writes otherwise than a shell does.
@pytest.mark.parametrize("name", ["JUDGE_KEY", "JUDGE", "greeting"])
@pytest.mark.parametrize("value", ["plain-but-private-31337", 'quo"ted\\and ünï-31337'], ids=["plain", "quoted"])
def test_no_value_taken_from_the_host_is_in_a_file_of_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("INVENTED_HOST_VALUE", value)
    template = f'{name} = "Bearer ${{INVENTED_HOST_VALUE}}"\n'
    manifest = "".join(f"[{table}.env]\n{template}" for table in ("environment", "solution", "verifier"))
    tell = (
        f'echo "it is ${name}"\necho "it is ${name}" >&2\nenv > {{0}}/env.txt\n'
        f'python3 -c \'import json, os; print(json.dumps({{{{"said": os.environ["{name}"]}}}}))\' > {{0}}/ctrf.json\n'
        f'printf "\\000\\377%s" "${name}" > {{0}}/binary\nmkdir -p {{0}}/deep\nenv > {{0}}/deep/env.txt\n'
    )
    files = {
        "solution/solve.sh": tell.format("/logs/artifacts"),
        "tests/test.sh": tell.format("/logs/verifier") + f'echo "${name}" > /logs/artifacts/late\n' + REWARD.format(1),
    }
    rollout = run(write_task(tmp_path / "task", manifest, files))
    assert rollout.verdict == "pass", rollout.result
    assert {"ctrf.json", "env.txt", "late"} <= {path.name for path in rollout.path.rglob("*")}
    assert telling(rollout, value) == []


def telling(rollout: Rollout, value: str) -> list[str]:
    """Return the files of a rollout that hold a value, as it is or as JSON writes it."""
    forms = {value.encode(), json.dumps(value)[1:-1].encode(), json.dumps(value, ensure_ascii=False)[1:-1].encode()}
    kept = {path: path.read_bytes() for path in rollout.path.rglob("*") if path.is_file()}
    return [str(path) for path, data in kept.items() if any(form in data for form in forms)]


@pytest.mark.parametrize("stream", ["0", "1"], ids=["whole", "streamed"])
def test_a_value_of_the_host_that_an_agent_reads_is_in_no_file_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    value = 'quo"ted\\and ünï-31337'
    monkeypatch.setenv("INVENTED_HOST_VALUE", value)
    task = write_task(tmp_path / "task", '[environment.env]\nNOTE = "${INVENTED_HOST_VALUE}"\n', {})
    turns = [
        ScriptTurn(calls=(Call("shell", {"command": "env"}), Call("shell", {"command": "env > /logs/artifacts/env"}))),
        ScriptTurn(text=f"It is {value}.", calls=(Call("shell", {"command": f"echo '{value}'"}),)),
        ScriptTurn(calls=(Call("finish", {"message": f"Done: {value}"}),)),
    ]
    upstream = ScriptedUpstream(turns)

    async def work() -> Rollout:
        async with serving(upstream) as url:
            return await run_rollout(
                RolloutConfig(
                    task=task,
                    model=f"invented/scripted@{url}",
                    jobs_dir=tmp_path / "jobs",
                    agent_env={"BENCHFLOW_STREAM": stream},
                )
            )

    rollout = asyncio.run(work())
    assert rollout.verdict == "pass", rollout.result
    assert json.dumps(value)[1:-1].encode() in upstream.requests[1].body, "what the model is sent stays as it is"
    assert rollout.result["redactions"] > 0
    assert telling(rollout, value) == []
