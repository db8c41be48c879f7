"""Every format comes in and any provider's comes out: streamed or not, with tool calls, errors and true evidence."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

from pytest_benchflow.dialects._match import dialect_for
from pytest_benchflow.proxy._litellm_frames import LEASES
from pytest_benchflow.proxy._routed import RoutedUpstream
from pytest_benchflow.proxy.keycheck import rejection
from pytest_benchflow.proxy.litellm import Translation, _join
from pytest_benchflow.proxy.routes import provider_route
from pytest_benchflow.proxy.script import Call, ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from tests.unit.proxy import clouds
from tests.unit.proxy.door import GEMINI, PATHS, STREAMS, Door, asking, door, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.unit.proxy.clouds import Cloud

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
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


@dataclass(frozen=True)
class Rig:
    """Doors to models that are translated for, by the session's process."""

    session: str
    path: Path  # of the rollout
    host: pytest.MonkeyPatch

    @asynccontextmanager
    async def door(self, model: str, *, effort: str | None = None) -> AsyncIterator[Door]:
        """Open one to a model, as what the host sets now leads to it."""
        route = provider_route(model)
        translation = Translation(self.session)
        assert isinstance(route.upstream, RoutedUpstream)
        route.upstream.use(translation, dialect=None)
        try:
            async with door(self.path, route.upstream, secrets=route.secrets) as agent:
                agent.endpoint._effort = effort
                yield agent
        finally:
            await translation.close()

    @asynccontextmanager
    async def anthropic(self, *turns: ScriptTurn) -> AsyncIterator[tuple[Door, ScriptedUpstream]]:
        """Open one to a model of Anthropic's, and serve that."""
        upstream = ScriptedUpstream(turns or (LOOKING,))
        async with serving(upstream) as url:
            self.host.setenv("ANTHROPIC_BASE_URL", url)
            async with self.door("anthropic/claude-x") as agent:
                yield agent, upstream

    @asynccontextmanager
    async def bedrock(self, name: str = CLAUDE, *, effort: str | None = None) -> AsyncIterator[tuple[Door, Cloud]]:
        """Open one to a model of Bedrock's, and serve that; its credentials are set."""
        async with clouds.bedrock() as cloud:
            self.host.setenv("AWS_REGION", "us-west-2")
            self.host.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", cloud.url)
            async with self.door(f"bedrock/{name}", effort=effort) as agent:
                yield agent, cloud

    @asynccontextmanager
    async def vertex(self) -> AsyncIterator[tuple[Door, Cloud, str]]:
        """Open one to a model of Vertex AI's, and serve that; third the private key of the service account."""
        async with clouds.vertex() as cloud:
            account = clouds.service_account(self.path.with_name("account.json"), cloud.url)
            self.host.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
            self.host.setenv("VERTEXAI_PROJECT", "invented-project")
            self.host.setenv("VERTEXAI_LOCATION", "us-central1")
            self.host.setenv("VERTEXAI_API_BASE", cloud.url)
            async with self.door("vertex/gemini-2.5-pro") as agent:
                yield agent, cloud, json.loads(account.read_text())["private_key"]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set a key of each provider, and lead to none of their own servers."""
    monkeypatch.setenv("AZURE_API_VERSION", "2024-10-21")
    for name in ("OPENAI", "ANTHROPIC", "AZURE", "GEMINI", "ZAI", "MISTRAL"):
        monkeypatch.setenv(f"{name}_API_KEY", f"sk-{name}-invented")
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bearer-invented-1")
    return monkeypatch


@pytest.fixture
def rig(session: str, tmp_path: Path, host: pytest.MonkeyPatch) -> Rig:
    return Rig(session, tmp_path / "run", host)


@pytest.fixture
def own_rig(request: pytest.FixtureRequest, testrun_uid: str, tmp_path: Path, host: pytest.MonkeyPatch) -> Rig:
    """Return one with a process of its own."""
    return Rig(f"{crc32(request.node.name.encode()):08x}{testrun_uid}", tmp_path / "run", host)


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


def is_listening(directory: Path) -> bool:
    """Tell whether a process still takes leases."""
    with socket.socket(socket.AF_UNIX) as lease:
        return lease.connect_ex(str(directory / LEASES)) == 0


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
    "azure": ("azure/gpt-x", "AZURE_API_BASE", None, ""),
    "gemini": ("gemini/gemini-x", "GEMINI_BASE_URL", "generateContent", "beta"),
    "other": ("mistral/large-x", "MISTRAL_API_BASE", "chat", ""),
}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_format_is_translated_for_a_provider(provider: str, rig: Rig) -> None:
    model, variable, spoken, version = PROVIDERS[provider]

    async def work() -> None:
        upstream = ScriptedUpstream([LOOKING])
        async with serving(upstream) as url:
            rig.host.setenv(variable, url + version)
            route = provider_route(model)
            assert route.way is not None
            formats = [each for each in FORMATS if each not in route.way.natives]
            async with rig.door(model) as agent:
                for record in await ask_in_every_format(agent, *formats):
                    told = record["metadata"]["upstream"]
                    assert record["metadata"]["translated_by"].startswith("litellm ")
                    assert record["metadata"]["upstream_calls"] == 1
                    assert (told["status"], told["model"]) == (200, route.way.model)
                    assert spoken in (None, told["format"])
                    assert told["response_id"], "the provider's own id"
                    assert "be brief" in json.dumps(told["request"])
                assert route.secrets
                assert_nothing_shown(agent, rig.session, *route.secrets)
            assert len(upstream.requests) == 2 * len(formats)
            shown = {value for each in upstream.requests for value in each.headers.values() if "invented" in value}
            assert len(shown) == 1

    run(work())


def test_bedrock_keeps_thoughts_and_their_signatures(rig: Rig) -> None:
    async def work() -> None:
        rig.host.delenv("AWS_BEARER_TOKEN_BEDROCK")
        rig.host.setenv("AWS_ACCESS_KEY_ID", "AKIAINVENTED00001")
        rig.host.setenv("AWS_SECRET_ACCESS_KEY", "secret/invented/0001")
        async with rig.bedrock() as (agent, cloud):
            records = await ask_in_every_format(agent, *FORMATS)
            assert_nothing_shown(agent, rig.session, "AKIAINVENTED00001", "secret/invented/0001")
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


def test_a_thought_goes_back_to_bedrock_as_it_came(rig: Rig) -> None:
    async def work() -> None:
        async with rig.bedrock() as (agent, cloud):
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


def test_vertex_is_asked_with_the_token_of_a_service_account(rig: Rig) -> None:
    async def work() -> None:
        async with rig.vertex() as (agent, cloud, key):
            assert key in provider_route("vertex/gemini-2.5-pro").secrets
            records = await ask_in_every_format(agent, *FORMATS)
            assert_nothing_shown(agent, rig.session, key, key[100:160], "ya29.invented")
            assert all("/projects/invented-project/locations/us-central1/" in each[0] for each in cloud.requests)
            assert {record["metadata"]["upstream"]["response_id"] for record in records} == {"vertex-1"}

    run(work())


def test_credentials_that_cannot_be_had_are_a_401_that_is_not_tried_again(rig: Rig) -> None:
    async def work() -> None:
        async with rig.vertex() as (agent, cloud, _):
            cloud.refuses_tokens = True
            answers = [await agent.post(*sent("messages", streamed=False)) for _ in range(2)]
            assert [answer.status for answer in answers] == [401, 401]
            assert "no credentials: " in answers[0].raw.decode()
            assert "invalid_grant" in answers[0].raw.decode()
            assert "is not asked again" in answers[1].raw.decode()
            assert cloud.requests == []

    run(work())


@pytest.mark.parametrize("case", ["taken", "rejected", "no-profile"])
def test_a_key_that_only_litellm_uses_is_tried_with_one_word(case: str, rig: Rig) -> None:
    async def work() -> None:
        if case == "no-profile":
            rig.host.delenv("AWS_BEARER_TOKEN_BEDROCK")
            rig.host.setenv("AWS_PROFILE", "of-nobody")
        async with rig.bedrock() as (_, cloud):
            cloud.status = 200 if case == "taken" else 403
            translation = Translation(rig.session)
            said = await rejection(provider_route(f"bedrock/{CLAUDE}"), translation)
            await translation.close()
            if case == "no-profile":
                assert said is not None
                assert "(of-nobody) could not be found" in said
                assert cloud.requests == []
                return
            assert said == (None if case == "taken" else "403 too many requests")
            ((_, _, asked),) = cloud.requests
            assert asked["messages"] == [{"role": "user", "content": [{"text": "."}]}]
            assert asked["inferenceConfig"] == {"maxTokens": 1}

    run(work())


@pytest.mark.parametrize("dialect", FORMATS)
def test_an_error_keeps_its_status_and_is_not_tried_again(dialect: str, rig: Rig) -> None:
    async def work() -> None:
        async with rig.bedrock("amazon.nova-x") as (agent, cloud):
            cloud.status = 429
            for streamed in (False, True):
                answer = await agent.post(*sent(dialect, streamed=streamed))
                assert answer.status == 429
                assert "too many requests" in json.dumps(answer.json)
                assert answer.headers["Retry-After"] == "7"
            assert len(cloud.requests) == 2

    run(work())


def test_what_litellm_refuses_is_told_and_not_dropped(rig: Rig) -> None:
    async def work() -> None:
        async with rig.anthropic() as (agent, upstream):
            answer = await agent.post(asking("x", seed=7, logit_bias={"1": 2}))
            assert answer.status == 400
            assert "cannot be translated" in answer.json["error"]["message"]
            assert upstream.requests == []

    run(work())


def test_a_hint_that_changes_no_answer_is_left_out_where_it_has_no_place(rig: Rig) -> None:
    async def work() -> None:
        async with rig.anthropic() as (agent, upstream):
            for streamed in (False, True):
                body, path = sent("responses", streamed=streamed, prompt_cache_key="thread-1", store=False)
                assert (await agent.post(body, path)).status == 200
            told = [record["metadata"]["hints_left_out"] for record in agent.records()]
            assert all("prompt_cache_key" in each for each in told)
            assert not any(b"thread-1" in asked.body for asked in upstream.requests)

    run(work())


def test_an_agent_does_not_steer_litellm(rig: Rig) -> None:
    async def work() -> None:
        async with rig.anthropic() as (agent, upstream):
            steering = {"headers": {"x-api-key": "other"}, "vertex_project": "p", "use_litellm_proxy": True}
            steering |= {"timeout": 0.001, "extra_body": {"model": "other"}, "ssl_verify": False}
            assert (await agent.post(asking("x", **steering))).status == 200
            (record,) = agent.records()
            assert sorted(record["metadata"]["stripped"]) == sorted(steering)
            (asked,) = upstream.requests
            assert json.loads(asked.body)["model"] == "claude-x"

    run(work())


def test_tokens_that_no_provider_counted_are_not_invented(rig: Rig) -> None:
    async def work() -> None:
        silent = ScriptedUpstream([ScriptTurn(text="hi", usage=False, repeat=True)])
        async with serving(silent) as url, rig.door(f"vllm/m@{url}") as agent:
            for streamed in (False, True):
                assert (await agent.post(*sent("generateContent", streamed=streamed))).status == 200
            for record in agent.records():
                assert "usageMetadata" not in record["response"]["body"]

    run(work())


def test_a_stream_that_is_cut_ends_cut(rig: Rig) -> None:
    async def work() -> None:
        async with rig.anthropic(ScriptTurn(text="a long story", cut=600)) as (agent, _):
            answer = await agent.post(*sent("chat", streamed=True))
            assert answer.cut
            (record,) = agent.records()
            assert record["error"]["type"] == "incomplete_stream"

    run(work())


@pytest.mark.parametrize("hangs_up", [True, False], ids=["hung-up", "not-there"])
def test_a_request_that_may_be_billed_is_told_from_one_that_was_not_sent(hangs_up: bool, rig: Rig) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.close()

    async def work() -> None:
        provider = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        rig.host.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{provider.sockets[0].getsockname()[1]}")
        if not hangs_up:
            provider.close()
        async with rig.door("anthropic/claude-x") as agent:
            assert (await agent.post(*sent("chat", streamed=False))).status == 502
            (record,) = agent.records()
        provider.close()
        assert record["metadata"].get("upstream_unanswered", False) is hangs_up

    run(work())


def test_an_effort_is_followed_to_the_provider(rig: Rig) -> None:
    async def work() -> None:
        async with rig.bedrock(effort="high") as (agent, _):
            body, path = sent("chat", streamed=False, reasoning_effort="high")
            assert (await agent.post(body, path)).status == 200
            (record,) = agent.records()
            report = await agent.endpoint.close()
            expected = {"asked": "high", "agent": "high", "upstream": "budget=4096", "echoed": None}
            assert record["metadata"]["effort"] == expected
            assert report.efforts == (expected,)
            assert report.warnings == ("the reasoning effort high of a request went to the provider as budget=4096",)

    run(work())


def test_a_process_that_does_not_start_says_why_and_leaves_nothing(tmp_path: Path, own_rig: Rig) -> None:
    (tmp_path / "litellm.py").write_text("raise ImportError('an invented fault of the installation')\n")
    own_rig.host.setenv("PYTHONPATH", str(tmp_path))

    async def work() -> None:
        async with own_rig.door("anthropic/claude-x") as agent:
            for _ in range(2):
                answer = await agent.post(*sent("chat", streamed=False))
                assert answer.status == 502
                assert "does not start: " in answer.json["error"]["message"]
                assert "an invented fault of the installation" in answer.json["error"]["message"]
        assert not Translation(own_rig.session).directory.exists()

    run(work())


def test_a_process_that_was_killed_is_replaced(own_rig: Rig) -> None:
    async def work() -> None:
        directory = Translation(own_rig.session).directory
        async with own_rig.anthropic() as (agent, _):
            assert (await agent.post(*sent("chat", streamed=False))).status == 200
            (first,) = translators(directory)
            os.kill(first, signal.SIGKILL)
            # A process that ends loses its command line before its sockets.
            await until(lambda: not is_listening(directory))
            statuses = [(await agent.post(*sent("chat", streamed=False))).status for _ in range(2)]
            assert statuses in ([200, 200], [502, 200])
            (second,) = translators(directory)
            assert first != second
        await until(lambda: not translators(directory))
        assert not directory.exists()

    run(work())
