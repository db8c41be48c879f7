"""A rejected key ends a session before its first rollout, or as soon as it is known; and a route is written down."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from tests.modelhost import served

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

KEY = "canary-of-the-server-0815"
ONLY_ROLLOUTS = ("-m", "rollout", "--benchflow-agent=baseline")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_MODEL_API_KEY", KEY)


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_rejected_key_ends_the_session_before_anything_starts(bench: Bench, more: tuple[str, ...]) -> None:
    bench.task()
    provider = ScriptedUpstream([ScriptTurn(status=401, error=f"no such key {KEY}", repeat=True)])
    with served(provider) as url:
        done = bench.run("tasks", *ONLY_ROLLOUTS, *more, f"--benchflow-model=vllm/m@{url}", "--benchflow-trials=3")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    said = done.stdout.str() + done.stderr.str()
    assert "the key in BENCHFLOW_MODEL_API_KEY was rejected: 401 no such key (left out)" in said
    assert KEY not in said
    assert len(provider.requests) == 1
    assert bench.rollouts() == []


def test_a_key_that_is_rejected_later_ends_the_session_then(bench: Bench) -> None:
    bench.task()
    provider = ScriptedUpstream([ScriptTurn(status=401, error="revoked", repeat=True)])
    options = ("--benchflow-skip-key-check", "--benchflow-trials=3")
    with served(provider) as url:
        done = bench.run("tasks", *ONLY_ROLLOUTS, f"--benchflow-model=vllm/m@{url}", *options)
    assert done.ret == 1
    said = done.stdout.str()
    host = url.partition("://")[2].partition("/")[0]
    assert f"the key in BENCHFLOW_MODEL_API_KEY was rejected: {host} answered 401; set a valid one" in said
    assert "pass --benchflow-skip-key-check" not in said  # which was passed, and helps nobody here
    assert len(provider.requests) == 1
    assert len(bench.rollouts()) == 1


# Calls its model until that fails, and takes failures for answers: it ends its turn, or goes on asking.
CARELESS = """
from pytest_benchflow.contracts import AgentOutcome

ASK = '''
import http.client, json, sys, time, urllib.parse
where = urllib.parse.urlsplit(sys.argv[1])
tools = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
messages = [{"role": "user", "content": sys.argv[3]}]
status = 200
while status == 200 or sys.argv[4] == "asks-on":
    time.sleep(0.05)
    connection = http.client.HTTPConnection(where.netloc)
    body = json.dumps({"model": "m", "messages": messages, "tools": tools})
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + sys.argv[2]})
    answer = connection.getresponse()
    status, raw = answer.status, answer.read()
    if status == 200:
        messages.append(json.loads(raw)["choices"][0]["message"])
        for call in messages[-1].get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "ok"})
'''


class Careless:
    version, uses_model, api_dialect = "1", True, "chat"

    def __init__(self, name):
        self.name = name

    def unsupported(self, task):
        return None

    async def install(self, backend, task, log_dir):
        return ()

    async def run(self, context):
        argv = ["python3", "-c", ASK, context.base_url, context.token, context.instruction, self.name]
        done = await context.sandbox.exec(argv, cwd=context.sandbox.workdir, timeout=context.timeout_sec)
        if done.timed_out:
            return AgentOutcome("timeout", idle_before_timeout_s=0.1)
        return AgentOutcome("finished", stop_reason="end_turn")


def pytest_benchflow_agents():
    return {"ends": Careless, "asks-on": Careless}
"""
CALL = ScriptTurn(calls=(Call("shell", {"command": "true"}),))


@pytest.mark.parametrize(
    ("agent", "more"),
    [("ends", ()), ("ends", ("-n", "2")), ("asks-on", ("--benchflow-concurrency=2",))],
    ids=["ends", "ends-on-workers", "asks-on"],
)
def test_a_key_that_is_rejected_within_a_rollout_is_what_broke_it(
    bench: Bench, agent: str, more: tuple[str, ...]
) -> None:
    bench.task()
    bench.pytester.makeconftest(CARELESS)
    provider = ScriptedUpstream([CALL, CALL, CALL, ScriptTurn(status=401, error=f"revoked: {KEY}", repeat=True)])
    options = ("--benchflow-skip-key-check", "--benchflow-trials=40", "--benchflow-retries=3")
    with served(provider) as url:
        asked = ("tasks", "-m", "rollout", f"--benchflow-agent={agent}", f"--benchflow-model=vllm/m@{url}")
        done = bench.run(*asked, *options, *more)
    # xdist ends a session that fails early as one that was interrupted.
    assert done.ret == (2 if "-n" in more else 1)
    host = url.partition("://")[2].partition("/")[0]
    told = f"the key in BENCHFLOW_MODEL_API_KEY was rejected: {host} answered 401; set a valid one"
    assert told in done.stdout.str()
    # One for each process that finds out.
    assert 1 <= done.parseoutcomes()["errors"] <= 2
    # Those that had begun by then.
    assert 1 <= len(bench.rollouts()) <= 4
    for path in bench.rollouts():
        result = bench.result(path)
        found = tuple(result[name] for name in ("verdict", "verdict_category", "error_category", "training_ready"))
        assert found == ("unhealthy", "infra", "auth", False)
        assert result["error"].startswith(f"{host} answered 401 to the key in BENCHFLOW_MODEL_API_KEY: revoked")
        assert not (path / "attempts").exists()
        assert not [each for each in path.rglob("*") if each.is_file() and KEY.encode() in each.read_bytes()]
    assert KEY not in done.stdout.str() + done.stderr.str()


def test_a_server_that_wants_a_key_ends_a_session_that_has_none(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCHFLOW_MODEL_API_KEY")
    bench.task()
    bench.pytester.makeconftest(CARELESS)
    provider = ScriptedUpstream([CALL, ScriptTurn(status=401, error="who are you", repeat=True)])
    with served(provider) as url:
        asked = ("tasks", "-m", "rollout", "--benchflow-agent=ends", f"--benchflow-model=vllm/m@{url}")
        done = bench.run(*asked, "--benchflow-trials=9")
    assert done.ret == 1
    host = url.partition("://")[2].partition("/")[0]
    assert f"requests without a key were rejected: {host} answered 401; set one, for" in done.stdout.str()
    (path,) = bench.rollouts()
    assert bench.result(path)["error"] == f"{host} answered 401 to a request without a key: who are you"
    assert len(provider.requests) == 2


def test_a_key_in_doubt_is_tried_again_before_the_next_rollout(bench: Bench) -> None:
    bench.task()
    bench.pytester.makeconftest(CARELESS)
    taken = ScriptTurn(status=400, error="messages is empty")
    provider = ScriptedUpstream([taken, CALL, *([ScriptTurn(status=403, error="expired")] * 2)])
    with served(provider) as url:
        asked = ("tasks", "-m", "rollout", "--benchflow-agent=ends", f"--benchflow-model=vllm/m@{url}")
        done = bench.run(*asked, "--benchflow-trials=9")
    assert done.ret == 1
    assert "the key in BENCHFLOW_MODEL_API_KEY was rejected: 403 expired; set a valid one" in done.stdout.str()
    assert len(provider.requests) == 4
    (path,) = bench.rollouts()
    assert bench.result(path)["error_category"] == "auth"


def test_the_route_and_its_limits_are_written_down_without_the_key(bench: Bench) -> None:
    bench.task()
    turns = [
        ScriptTurn(status=400, error="empty"),
        ScriptTurn(text="done", calls=(Call("shell", {"command": "true"}),)),
    ]
    with served(ScriptedUpstream([*turns, ScriptTurn(text="done", repeat=True)])) as url:
        options = ("--benchflow-model-timeout=77", "--benchflow-agent-timeout=60", "--benchflow-reasoning-effort=high")
        done = bench.run("tasks", *ONLY_ROLLOUTS, f"--benchflow-model=vllm/m@{url}", *options)
    assert done.ret == 0, done.outlines
    (path,) = bench.rollouts()
    config = json.loads((path / "config.json").read_text())
    assert config["route"] == {
        "agent_format": "chat",
        "passes_through": True,
        "base_url": url,
        "litellm_model": "openai/m",
        "key_source": "BENCHFLOW_MODEL_API_KEY",
    }
    seconds = config["limits"]["seconds"]["task"]
    assert {name: seconds[name] for name in ("agent", "llm_client", "upstream", "litellm")} == {
        "agent": 60,
        "llm_client": 77,
        "upstream": 77,
        "litellm": 77,
    }
    assert config["efforts"][0]["asked"] == "high"
    assert not [each for each in path.rglob("*") if each.is_file() and KEY.encode() in each.read_bytes()]


class Rejecting(ThreadingHTTPServer):
    """A provider that no format of agents' reaches, which rejects the key of each request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Rejection)
        self.asked: list[str] = []


class Rejection(BaseHTTPRequestHandler):
    server: Rejecting

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        raw = b'{"message": "The security token included in the request is invalid."}'
        self.send_response(403)
        self.send_header("x-amzn-errortype", "UnrecognizedClientException")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "workers"])
def test_a_key_that_only_litellm_uses_is_tried_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    bench.task()
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAINVENTED00001")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret/invented/0001")
    with Rejecting() as provider:
        thread = threading.Thread(target=provider.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", f"http://127.0.0.1:{provider.server_address[1]}")
        done = bench.run("tasks", *ONLY_ROLLOUTS, *more, "--benchflow-model=bedrock/amazon.nova-x")
        provider.shutdown()
        thread.join()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    said = done.stdout.str() + done.stderr.str()
    assert "the key in AWS_ACCESS_KEY_ID was rejected: 403 The security token included in the request is inv" in said
    assert len(provider.asked) == 1
    assert bench.rollouts() == []
