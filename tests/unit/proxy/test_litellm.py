"""Every format comes in and any provider's comes out: streamed or not, with tool calls, errors and true evidence."""

from __future__ import annotations

import json
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy.litellm import Translation, _join
from pytest_benchflow.proxy.routes import Route, provider_route
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from tests.unit.proxy import clouds
from tests.unit.proxy.door import GEMINI, PATHS, STREAMS, Door, asking, door, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

FORMATS = ("chat", "responses", "messages", "generateContent")
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "look"}],
        "tools": [{"type": "function", "function": {"name": "shell", "description": "runs", "parameters": SCHEMA}}],
        "max_tokens": 5000,
    },
    "responses": {
        "model": "m",
        "instructions": "be brief",
        "input": [{"role": "user", "content": "look"}],
        "tools": [{"type": "function", "name": "shell", "description": "runs", "parameters": SCHEMA}],
        "max_output_tokens": 5000,
    },
    "messages": {
        "model": "m",
        "system": "be brief",
        "messages": [{"role": "user", "content": "look"}],
        "tools": [{"name": "shell", "description": "runs", "input_schema": SCHEMA}],
        "max_tokens": 5000,
    },
    "generateContent": {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [{"role": "user", "parts": [{"text": "look"}]}],
        "tools": [{"functionDeclarations": [{"name": "shell", "description": "runs", "parameters": SCHEMA}]}],
        "generationConfig": {"maxOutputTokens": 5000},
    },
}
LOOKING = ScriptTurn(
    text="looking",
    calls=tuple(Call("shell", arguments, id=name) for name, arguments in clouds.CALLS),
    repeat=True,
)


@pytest.fixture(scope="session")
def session(testrun_uid: str) -> Iterator[str]:
    """Return the session whose process these tests share, also when several workers run them."""
    name = f"t{testrun_uid}"
    lease = _join(Translation(name).directory)
    yield name
    lease.close()


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "ZAI"):
        monkeypatch.setenv(f"{name}_API_KEY", f"sk-{name}-invented")
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    return monkeypatch


@asynccontextmanager
async def translated(route: Route, session: str, path: Path, *, effort: str | None = None) -> AsyncIterator[Door]:
    """Open a door to a route's model that shares the session's process."""
    from pytest_benchflow.proxy._routed import RoutedUpstream

    translation = Translation(session)
    assert isinstance(route.upstream, RoutedUpstream)
    route.upstream.use(translation, dialect=None)
    try:
        async with door(path, route.upstream, secrets=route.secrets) as agent:
            agent.endpoint._effort = effort
            yield agent
    finally:
        await translation.close()


def sent(dialect: str, *, streamed: bool, **more: Any) -> tuple[dict[str, Any], str]:
    """Return the body and the path of a request."""
    if dialect == "generateContent":
        return BODIES[dialect] | more, STREAMS[dialect] if streamed else GEMINI
    return BODIES[dialect] | more | ({"stream": True} if streamed else {}), PATHS[dialect]


def translators(directory: Path) -> list[int]:
    """Return the processes whose command line names a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        found += [int(process.name)] if str(directory).encode() in command else []
    return found


def assert_nothing_shown(agent: Door, session: str, *secrets: str) -> None:
    """Look for secrets in all that was recorded, and in what others can see of the process."""
    places = [path for path in agent.rundir.path.rglob("*") if path.is_file()]
    translating = translators(Translation(session).directory)
    assert translating
    places += [Path(f"/proc/{pid}/{name}") for pid in translating for name in ("environ", "cmdline")]
    places += [path for path in Translation(session).directory.iterdir() if path.is_file()]
    for place in places:
        text = place.read_bytes().decode(errors="replace")
        assert not [secret for secret in secrets if secret in text], place


async def ask_in_every_format(agent: Door, *formats: str) -> list[dict[str, Any]]:
    """Ask in each format, whole and streamed; check text, both calls and tokens; return the records."""
    for dialect in formats:
        for streamed in (False, True):
            more = {"stream_options": {"include_usage": True}} if streamed and dialect == "chat" else {}
            body, path = sent(dialect, streamed=streamed, **more)
            assert (await agent.post(body, path)).status == 200, (dialect, streamed)
    records = agent.records()
    assert len(records) == 2 * len(formats)
    for record in records:
        case = (record["request"]["path"], record["metadata"]["stream"])
        dialect_found = dialect_for(record["request"]["path"])
        assert dialect_found is not None
        answer = record["response"]["body"]
        assert record["error"] is None, case
        assert dialect_found.outcome(200, answer).kind == "completed", case
        turn = dialect_found.response_turn(answer)
        assert turn is not None
        assert "looking" in turn.text, case
        calls = [(call.name, json.loads(call.arguments)) for call in turn.tool_calls]
        assert calls == [("shell", arguments) for _, arguments in clouds.CALLS], case
        usage = dialect_found.usage(answer)
        assert usage is not None, case
        assert usage.input_tokens, case
        assert usage.output_tokens, case
        assert b'"cost"' not in json.dumps(answer).encode(), case
    return records


PROVIDERS = {
    "anthropic": ("anthropic/claude-x", "ANTHROPIC_BASE_URL", "messages", ""),
    "openai": ("openai/gpt-x", "OPENAI_BASE_URL", None, ""),
    "gemini": ("gemini/gemini-x", "GEMINI_BASE_URL", "generateContent", "beta"),
    "other": ("mistral/large-x", "MISTRAL_API_BASE", "chat", ""),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_format_is_translated_for_a_provider(
    provider: str, session: str, tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    model, variable, spoken, version = PROVIDERS[provider]

    async def work() -> None:
        upstream = ScriptedUpstream([LOOKING])
        async with serving(upstream) as url:
            variables.setenv(variable, url + version)
            variables.setenv("MISTRAL_API_KEY", "sk-mistral-invented")
            route = provider_route(model)
            assert route.way is not None
            formats = [each for each in FORMATS if each not in route.way.natives]
            async with translated(route, session, tmp_path / "run") as agent:
                for record in await ask_in_every_format(agent, *formats):
                    told = record["metadata"]["upstream"]
                    assert record["metadata"]["translated_by"].startswith("litellm ")
                    assert record["metadata"]["upstream_calls"] == 1
                    assert (told["status"], told["model"]) == (200, route.way.model)
                    assert spoken in (None, told["format"])
                    assert told["response_id"], "the provider's own id"
                    assert "be brief" in json.dumps(told["request"])
                assert route.secrets
                assert_nothing_shown(agent, session, *route.secrets)
            assert len(upstream.requests) == 2 * len(formats)
            shown = {value for each in upstream.requests for value in each.headers.values() if "invented" in value}
            assert len(shown) == 1

    run(work())


def test_bedrock_keeps_thoughts_and_their_signatures(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with clouds.bedrock() as cloud:
            monkeypatch.setenv("AWS_REGION", "us-west-2")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAINVENTED00001")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret/invented/0001")
            monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", cloud.url)
            route = provider_route("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0")
            async with translated(route, session, tmp_path / "run") as agent:
                records = await ask_in_every_format(agent, *FORMATS)
                assert_nothing_shown(agent, session, "AKIAINVENTED00001", "secret/invented/0001")
            assert all("AWS4-HMAC-SHA256 Credential=AKIA" in sent[1]["Authorization"] for sent in cloud.requests)
            assert all("/us-west-2/bedrock/" in sent[1]["Authorization"] for sent in cloud.requests)
            for record in records[:6]:  # generateContent has no place for another provider's
                told = json.dumps(record["response"]["body"])
                assert clouds.THOUGHT in told
                assert clouds.SIGNATURE in told
            thought = {"type": "thinking", "thinking": clouds.THOUGHT, "signature": clouds.SIGNATURE}
            assert [record["response"]["body"]["content"][0] for record in records[4:6]] == [thought, thought]
            assert {record["metadata"]["upstream"]["request_id"] for record in records} == {"amz-1"}

    run(work())


def test_a_thought_goes_back_to_bedrock_as_it_came(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with clouds.bedrock() as cloud:
            monkeypatch.setenv("AWS_REGION", "us-west-2")
            monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bearer-invented-1")
            monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", cloud.url)
            route = provider_route("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0")
            async with translated(route, session, tmp_path / "run") as agent:
                body, path = sent("messages", streamed=False, thinking={"type": "enabled", "budget_tokens": 2048})
                first = (await agent.post(body, path)).json
                results = [{"type": "tool_result", "tool_use_id": name, "content": "ok"} for name, _ in clouds.CALLS]
                body["messages"] = [
                    *body["messages"],
                    {"role": "assistant", "content": first["content"]},
                    {"role": "user", "content": results},
                ]
                assert (await agent.post(body, path)).status == 200
            assert cloud.body()["messages"][1]["content"][0]["signature"] == clouds.SIGNATURE
            assert cloud.requests[-1][1]["Authorization"] == "Bearer bearer-invented-1"

    run(work())


def test_vertex_is_asked_with_the_token_of_a_service_account(
    session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with clouds.vertex() as cloud:
            account = clouds.service_account(tmp_path / "account.json", cloud.url)
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
            monkeypatch.setenv("VERTEXAI_PROJECT", "invented-project")
            monkeypatch.setenv("VERTEXAI_LOCATION", "us-central1")
            monkeypatch.setenv("VERTEXAI_API_BASE", cloud.url)
            route = provider_route("vertex/gemini-2.5-pro")
            assert json.loads(account.read_text())["private_key"] in route.secrets
            async with translated(route, session, tmp_path / "run") as agent:
                records = await ask_in_every_format(agent, *FORMATS)
                key = json.loads(account.read_text())["private_key"]
                assert_nothing_shown(agent, session, key, key[100:160], "ya29.invented")
            assert all("/projects/invented-project/locations/us-central1/" in each[0] for each in cloud.requests)
            assert {record["metadata"]["upstream"]["response_id"] for record in records} == {"vertex-1"}

    run(work())


@pytest.mark.parametrize("dialect", FORMATS)
def test_an_error_keeps_its_status_and_is_not_tried_again(
    dialect: str, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with clouds.bedrock() as cloud:
            cloud.status = 429
            monkeypatch.setenv("AWS_REGION", "us-west-2")
            monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bearer-invented-1")
            monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", cloud.url)
            async with translated(provider_route("bedrock/amazon.nova-x"), session, tmp_path / "run") as agent:
                for streamed in (False, True):
                    answer = await agent.post(*sent(dialect, streamed=streamed))
                    assert answer.status == 429
                    assert "too many requests" in json.dumps(answer.json)
                    assert answer.headers["Retry-After"] == "7"
            assert len(cloud.requests) == 2

    run(work())


def test_what_litellm_refuses_is_told_and_not_dropped(
    session: str, tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([LOOKING])
        async with serving(upstream) as url:
            variables.setenv("ANTHROPIC_BASE_URL", url)
            async with translated(provider_route("anthropic/claude-x"), session, tmp_path / "run") as agent:
                answer = await agent.post(asking("x", seed=7, logit_bias={"1": 2}))
                assert answer.status == 400
                assert "cannot be translated" in answer.json["error"]["message"]
            assert upstream.requests == []

    run(work())


def test_a_hint_that_changes_no_answer_is_left_out_where_it_has_no_place(
    session: str, tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([LOOKING])
        async with serving(upstream) as url:
            variables.setenv("ANTHROPIC_BASE_URL", url)
            async with translated(provider_route("anthropic/claude-x"), session, tmp_path / "run") as agent:
                for streamed in (False, True):
                    body, path = sent("responses", streamed=streamed, prompt_cache_key="thread-1", store=False)
                    assert (await agent.post(body, path)).status == 200
                told = [record["metadata"]["hints_left_out"] for record in agent.records()]
                assert all("prompt_cache_key" in each for each in told)
            assert not any(b"thread-1" in asked.body for asked in upstream.requests)

    run(work())


def test_an_agent_does_not_steer_litellm(session: str, tmp_path: Path, variables: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([LOOKING])
        async with serving(upstream) as url:
            variables.setenv("ANTHROPIC_BASE_URL", url)
            async with translated(provider_route("anthropic/claude-x"), session, tmp_path / "run") as agent:
                steering = {"headers": {"x-api-key": "other"}, "vertex_project": "p", "use_litellm_proxy": True}
                steering |= {"timeout": 0.001, "extra_body": {"model": "other"}, "ssl_verify": False}
                assert (await agent.post(asking("x", **steering))).status == 200
                (record,) = agent.records()
                assert sorted(record["metadata"]["stripped"]) == sorted(steering)
            (asked,) = upstream.requests
            assert json.loads(asked.body)["model"] == "claude-x"

    run(work())


def test_tokens_that_no_provider_counted_are_not_invented(
    session: str, tmp_path: Path, variables: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with serving(ScriptedUpstream([ScriptTurn(text="hi", usage=False, repeat=True)])) as url:
            route = provider_route(f"vllm/m@{url}")
            async with translated(route, session, tmp_path / "run") as agent:
                for streamed in (False, True):
                    assert (await agent.post(*sent("generateContent", streamed=streamed))).status == 200
                for record in agent.records():
                    assert "usageMetadata" not in record["response"]["body"]

    run(work())


def test_a_stream_that_is_cut_ends_cut(session: str, tmp_path: Path, variables: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with serving(ScriptedUpstream([ScriptTurn(text="a long story", cut=600)])) as url:
            variables.setenv("ANTHROPIC_BASE_URL", url)
            async with translated(provider_route("anthropic/claude-x"), session, tmp_path / "run") as agent:
                answer = await agent.post(*sent("chat", streamed=True))
                assert answer.cut
                (record,) = agent.records()
                assert record["error"]["type"] == "incomplete_stream"

    run(work())


def test_an_effort_is_followed_to_the_provider(session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with clouds.bedrock() as cloud:
            monkeypatch.setenv("AWS_REGION", "us-west-2")
            monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bearer-invented-1")
            monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", cloud.url)
            route = provider_route("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0")
            async with translated(route, session, tmp_path / "run", effort="high") as agent:
                body, path = sent("chat", streamed=False, reasoning_effort="high")
                assert (await agent.post(body, path)).status == 200
                (record,) = agent.records()
                report = await agent.endpoint.close()
            expected = {"asked": "high", "agent": "high", "upstream": "budget=4096", "echoed": None}
            assert record["metadata"]["effort"] == expected
            assert report.efforts == (expected,)
            assert report.warnings == ("the reasoning effort high of a request went to the provider as budget=4096",)

    run(work())


def test_a_process_that_does_not_start_says_why_and_leaves_nothing(
    tmp_path: Path, testrun_uid: str, variables: pytest.MonkeyPatch
) -> None:
    (tmp_path / "litellm.py").write_text("raise ImportError('an invented fault of the installation')\n")
    variables.setenv("PYTHONPATH", str(tmp_path))

    async def work() -> None:
        name = f"f{testrun_uid}"
        async with translated(provider_route("anthropic/claude-x"), name, tmp_path / "run") as agent:
            for _ in range(2):
                answer = await agent.post(*sent("chat", streamed=False))
                assert answer.status == 502
                assert "does not start: " in answer.json["error"]["message"]
                assert "an invented fault of the installation" in answer.json["error"]["message"]
        assert not Translation(name).directory.exists()

    run(work())


def test_a_process_that_was_killed_is_replaced(tmp_path: Path, testrun_uid: str, variables: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        name = f"k{testrun_uid}"
        directory = Translation(name).directory
        async with serving(ScriptedUpstream([LOOKING])) as url:
            variables.setenv("ANTHROPIC_BASE_URL", url)
            async with translated(provider_route("anthropic/claude-x"), name, tmp_path / "run") as agent:
                assert (await agent.post(*sent("chat", streamed=False))).status == 200
                (first,) = translators(directory)
                os.kill(first, signal.SIGKILL)
                statuses = [(await agent.post(*sent("chat", streamed=False))).status for _ in range(2)]
                assert statuses in ([200, 200], [502, 200])
                (second,) = translators(directory)
                assert first != second
        await until(lambda: not translators(directory))
        assert not directory.exists()

    run(work())
