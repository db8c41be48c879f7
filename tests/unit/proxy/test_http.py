"""What reaches a provider: the agent's bytes, our key, the routed model."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy.http import HttpUpstream
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from tests.unit.proxy.door import CHAT, PATHS, asking, door, run

if TYPE_CHECKING:
    from pathlib import Path

HELLO = ScriptTurn(text="hello", repeat=True)

AZURE = "/openai/deployments/real/chat/completions?api-version=2025-04-01"


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_bytes_pass_both_ways_and_the_key_is_ours(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        provider = ScriptedUpstream([HELLO])
        async with (
            serving(provider) as url,
            door(tmp_path, HttpUpstream(url, api_key="provider-key", model="m")) as agent,
        ):
            body = b'{ "model":"m",  "messages":[], "input":[], "x": 1.0 }'
            headers = {"x-api-key": agent.token, "anthropic-version": "2023-06-01", "User-Agent": "agent/1"}
            answer = await agent.post(body, path, headers=headers)
            assert answer.status == 200
            (asked,) = provider.requests
            assert (asked.path, asked.body) == (path, body)
            shown = {name.lower(): value for name, value in asked.headers.items()}
            assert agent.token not in str(shown)
            key = shown.get("x-api-key") if path == PATHS["messages"] else shown.get("authorization")
            assert key == ("provider-key" if path == PATHS["messages"] else "Bearer provider-key")
            assert (shown["anthropic-version"], shown["user-agent"]) == ("2023-06-01", "agent/1")
            assert shown["accept-encoding"] == "identity"
            metadata = agent.records()[0]["metadata"]
            assert (metadata["upstream_model"], metadata["upstream_attempt"]) == ("m", 1)

    run(work())


def test_the_routed_model_replaces_what_the_agent_named(tmp_path: Path) -> None:
    async def work() -> None:
        provider = ScriptedUpstream([HELLO])
        async with serving(provider) as url, door(tmp_path, HttpUpstream(url, api_key=None, model="real")) as agent:
            body = asking("x", big=123456789012345678901234567890)
            await agent.post(body)
            (asked,) = provider.requests
            assert json.loads(asked.body) == {**body, "model": "real"}
            assert "Authorization" not in asked.headers
            assert agent.records()[0]["request"]["body"]["model"] == "m", "the record holds what the agent sent"

    run(work())


def test_a_path_without_version_goes_to_the_same_place(tmp_path: Path) -> None:
    async def work() -> None:
        provider = ScriptedUpstream([HELLO])
        async with serving(provider) as url, door(tmp_path, HttpUpstream(url, api_key=None, model="m")) as agent:
            assert (await agent.post(asking("x"), "/chat/completions?a=%2Fb")).status == 200
            assert provider.requests[0].path == CHAT + "?a=%2Fb"
            assert agent.records()[0]["request"]["path"] == "/chat/completions"

    run(work())


@pytest.mark.parametrize("status", [400, 429, 500, 529])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_providers_refusal_passes_as_it_is(tmp_path: Path, status: int, *, stream: bool) -> None:
    async def work() -> None:
        provider = ScriptedUpstream([ScriptTurn(status=status, error="not now")])
        async with serving(provider) as url, door(tmp_path, HttpUpstream(url, api_key=None, model="m")) as agent:
            answer = await agent.post(asking("x", stream=stream))
            assert (answer.status, answer.json["error"]["message"]) == (status, "not now")
            record: dict[str, Any] = agent.records()[0]
            assert record["response"]["status_code"] == status
            assert (record["response"]["body"], record["error"]) == (answer.json, None)

    run(work())


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_a_provider_that_cannot_be_reached_is_a_502_in_the_agents_format(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        async with door(tmp_path, HttpUpstream(f"http://127.0.0.1:{port}/v1", api_key="k", model="m")) as agent:
            answer = await agent.post(asking("x"), path)
            assert answer.status == 502
            assert f"127.0.0.1:{port}" in answer.json["error"]["message"]
            (record,) = agent.records()
            assert record["error"]["type"] == "provider"
            # Nobody got it, so that nobody bills it.
            assert "upstream_unanswered" not in record["metadata"]

    run(work())


def test_a_provider_that_hangs_up_on_a_request_may_bill_it(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.close()

    async def work() -> None:
        provider = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = provider.sockets[0].getsockname()[1]
        async with provider, door(tmp_path, HttpUpstream(f"http://127.0.0.1:{port}", api_key="k", model="m")) as agent:
            assert (await agent.post(asking("x"))).status == 502
            (record,) = agent.records()
            assert record["error"]["type"] == "provider"
            assert record["metadata"]["upstream_unanswered"] is True

    run(work())


def test_a_redirect_is_not_followed_with_the_key(tmp_path: Path) -> None:
    class Redirecting(ScriptedUpstream):
        async def send(self, request: Any) -> Any:
            answer = await super().send(request)
            return type(answer)(307, {"Location": "http://127.0.0.1:1/"}, answer.chunks)

    async def work() -> None:
        provider = Redirecting([HELLO])
        async with serving(provider) as url, door(tmp_path, HttpUpstream(url, api_key="k", model="m")) as agent:
            async with agent.session.post(
                agent.url + CHAT, json=asking("x"), headers={"x-api-key": agent.token}, allow_redirects=False
            ) as answer:
                assert answer.status == 307
            assert len(provider.requests) == 1

    run(work())


@pytest.mark.parametrize("prefix", ["/v1beta", "/v1", "", "/v1beta1/projects/p/locations/eu/publishers/google"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_path_that_names_its_model_gets_the_routed_one_and_the_key_its_header(
    tmp_path: Path, prefix: str, *, stream: bool
) -> None:
    action = "streamGenerateContent?alt=sse" if stream else "generateContent"

    async def work() -> None:
        provider = ScriptedUpstream([HELLO])
        async with (
            serving(provider) as url,
            door(tmp_path, HttpUpstream(url, api_key="provider-key", model="real")) as agent,
        ):
            body = b'{ "contents": [{"parts": [{"text": "x"}]}] }'
            headers = {"x-goog-api-key": agent.token}
            answer = await agent.post(body, f"{prefix}/models/named:{action}", headers=headers)
            assert answer.status == 200
            (asked,) = provider.requests
            assert (asked.path, asked.body) == (f"{prefix or '/v1'}/models/real:{action}", body)
            shown = {name.lower(): value for name, value in asked.headers.items()}
            assert (shown["x-goog-api-key"], "authorization" in shown) == ("provider-key", False)
            (record,) = agent.records()
            assert record["request"]["path"] == f"{prefix}/models/named:{action.partition('?')[0]}"
            assert record["response"]["body"]["candidates"][0]["content"]["parts"] == [{"text": "hello"}]

    run(work())


@pytest.mark.parametrize("path", [AZURE, f"/v1{AZURE}"], ids=["as-azure-has-it", "behind-the-gateways-version"])
def test_azure_gets_its_path_its_version_and_the_key_in_its_header(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        provider = ScriptedUpstream([HELLO])
        async with serving(provider) as url:
            base = url.removesuffix("/v1")
            async with door(tmp_path, HttpUpstream(base, api_key="provider-key", model="real")) as agent:
                answer = await agent.post(asking("x"), path, headers={"api-key": agent.token})
                assert answer.status == 200
        (asked,) = provider.requests
        assert asked.path == AZURE
        shown = {name.lower(): value for name, value in asked.headers.items()}
        assert (shown["api-key"], "authorization" in shown) == ("provider-key", False)

    run(work())
