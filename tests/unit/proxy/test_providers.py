"""The table of providers: what a name needs of the host, where it leads, and with which key and query."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from yarl import URL

from pytest_benchflow.contracts import ModelResponse
from pytest_benchflow.errors import ProviderError, UsageError
from pytest_benchflow.proxy._providers import PROVIDERS, provider_of
from pytest_benchflow.proxy._routed import RoutedUpstream, Way
from pytest_benchflow.proxy.keycheck import rejection
from pytest_benchflow.proxy.litellm import Translation
from pytest_benchflow.proxy.routes import ACCEPTED, provider_route, way_to
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.proxy.serve import serving
from tests.unit.proxy.door import CHAT, GEMINI, PATHS, asking, door, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pytest_benchflow.contracts import ModelRequest

KEYS = {
    "openai": {"OPENAI_API_KEY": "k-openai"},
    "anthropic": {"ANTHROPIC_API_KEY": "k-anthropic"},
    "azure": {"AZURE_API_KEY": "k-azure", "AZURE_API_BASE": "https://own.azure", "AZURE_API_VERSION": "2025-04-01"},
    "bedrock": {"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "k-aws"},
    "vertex": {"GOOGLE_APPLICATION_CREDENTIALS": "FILE", "VERTEXAI_PROJECT": "p", "VERTEXAI_LOCATION": "global"},
    "gemini": {"GEMINI_API_KEY": "k-gemini"},
    "openrouter": {"OPENROUTER_API_KEY": "k-openrouter"},
    "zai": {"ZAI_API_KEY": "k-zai"},
    "deepseek": {"DEEPSEEK_API_KEY": "k-deepseek"},
}
NATIVES = {
    "openai": {"chat": "https://api.openai.com/v1", "responses": "https://api.openai.com/v1"},
    "anthropic": {"messages": "https://api.anthropic.com/v1"},
    "azure": {"chat": "https://own.azure/openai/deployments/m", "responses": "https://own.azure/openai"},
    "bedrock": {},
    "vertex": {},
    "gemini": {"generateContent": "https://generativelanguage.googleapis.com/v1beta"},
    "openrouter": dict.fromkeys(("chat", "responses", "messages"), "https://openrouter.ai/api/v1"),
    "zai": {"chat": "https://api.z.ai/api/paas/v4", "messages": "https://api.z.ai/api/anthropic/v1"},
    "deepseek": {"chat": "https://api.deepseek.com/v1", "messages": "https://api.deepseek.com/anthropic/v1"},
}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Take every variable of a provider from the host, and proxies with them."""
    for row in PROVIDERS.values():
        settings = [*row.settings, *(setting for each in row.credentials for setting in each)]
        for name in [*row.base_variables, *(name for setting in settings for name in setting.variables)]:
            monkeypatch.delenv(name, raising=False)
    return monkeypatch


def export(host: pytest.MonkeyPatch, provider: str, tmp_path: Path) -> None:
    (tmp_path / "account.json").write_text(json.dumps({"private_key": "-----BEGIN", "private_key_id": "k-id"}))
    for name, value in KEYS[provider].items():
        host.setenv(name, value.replace("FILE", str(tmp_path / "account.json")))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_row_says_where_each_format_is_served(provider: str, host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    export(host, provider, tmp_path)
    way, hidden = way_to(f"{provider}/m")
    assert dict(way.natives) == NATIVES[provider]
    assert way.litellm_model == f"{PROVIDERS[provider].litellm}/m"
    assert way.key_source in KEYS[provider]
    assert hidden
    assert not any(value in repr(way) for value in hidden)


@pytest.mark.parametrize(
    ("provider", "variable"), [(name, variable) for name, found in KEYS.items() for variable in found]
)
def test_each_variable_is_named_when_it_is_missing(
    provider: str, variable: str, host: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    export(host, provider, tmp_path)
    host.delenv(variable)
    with pytest.raises(ProviderError, match=f"model {provider}/m needs .*{variable}.* not set; export it"):
        provider_route(f"{provider}/m")


def test_other_names_lead_to_the_same_rows(host: pytest.MonkeyPatch) -> None:
    assert provider_of("google") is provider_of("gemini") is PROVIDERS["gemini"]
    assert provider_of("vertex_ai") is PROVIDERS["vertex"]
    host.setenv("GOOGLE_API_KEY", "k")
    assert way_to("google/m")[0].key_source == "GOOGLE_API_KEY"


def test_all_that_is_missing_is_named_at_once(host: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_API_KEY", "AZURE_API_BASE", "AZURE_API_VERSION"):
        host.delenv(name, raising=False)
    said = "needs AZURE_API_KEY; and AZURE_API_BASE; and AZURE_API_VERSION, which are not set; export them"
    with pytest.raises(ProviderError, match=said):
        provider_route("azure/m")
    host.setenv("AZURE_API_BASE", "https://one.example")
    with pytest.raises(ProviderError, match="needs AZURE_API_KEY; and AZURE_API_VERSION, which are not set"):
        provider_route("azure/m")


def test_a_name_that_only_litellm_may_know_says_what_to_install(host: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as error:
        provider_route("nobody/m")
    assert "pip install" not in str(error.value)
    host.setattr("pytest_benchflow.proxy._providers.is_there", lambda _name: False)
    with pytest.raises(UsageError, match=r"names that LiteLLM knows need pip install 'pytest-benchflow\[litellm\]'"):
        provider_route("nobody/m")


def test_names_of_litellm_are_known_with_their_keys(host: pytest.MonkeyPatch) -> None:
    host.delenv("GROQ_API_KEY", raising=False)
    with pytest.raises(ProviderError, match="model groq/llama needs GROQ_API_KEY, which is not set"):
        provider_route("groq/llama")
    host.setenv("GROQ_API_KEY", "k-groq")
    way, hidden = way_to("groq/llama")
    assert (way.litellm_model, way.natives, hidden) == ("groq/llama", {}, ("k-groq",))
    assert way_to("ollama/tiny")[0].key is None
    with pytest.raises(UsageError, match="is of no known form; it takes replay"):
        provider_route("nowhere/m")
    assert all(f"{name}/<model>" in ACCEPTED for name in PROVIDERS)


@pytest.mark.parametrize("provider", ["zai", "deepseek"])
def test_a_url_of_ones_own_serves_what_it_is_known_to(provider: str, host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    export(host, provider, tmp_path)
    host.setenv(f"{provider.upper()}_BASE_URL", "https://elsewhere/v4/")
    way, _ = way_to(f"{provider}/m")
    assert dict(way.natives) == {"chat": "https://elsewhere/v4"}
    assert way.parameters["api_base"] == "https://elsewhere/v4"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("openai/m", "OPENAI_BASE_URL has a user or a password in its URL"),
        ("groq/m", "GROQ_API_BASE has a user or a password in its URL"),
        ("my/m@http://me:hunter2-secret@host/v1", "http://***@host/v1' has a user or a password in it"),
        ("my/m@http://hunter2-secret@host/v1", "a server gets its key from BENCHFLOW_MODEL_API_KEY"),
    ],
    ids=["variable", "variable-of-litellm", "password", "user-alone"],
)
def test_no_password_is_taken_in_a_url(model: str, says: str, host: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GROQ_API_KEY"):
        host.setenv(name, "k")
    for name in ("OPENAI_BASE_URL", "GROQ_API_BASE"):
        host.setenv(name, "http://me:hunter2-secret@host/v1")
    with pytest.raises((UsageError, ProviderError), match=re.escape(says)) as refused:
        way_to(model)
    assert "hunter2" not in str(refused.value)


def test_credentials_that_cannot_be_read_are_told(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    export(host, "vertex", tmp_path)
    host.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(
        ProviderError, match=r"GOOGLE_APPLICATION_CREDENTIALS names .*nowhere.json, which cannot be read"
    ):
        provider_route("vertex/m")


@pytest.mark.parametrize("section", ["mine", "profile mine"])
def test_the_secrets_of_a_profile_reach_no_record(section: str, host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        host.setenv(name, str(tmp_path / name))
    name = "AWS_CONFIG_FILE" if section.startswith("profile") else "AWS_SHARED_CREDENTIALS_FILE"
    (tmp_path / name).write_text(
        f"[{section}]\naws_secret_access_key = k/of+mine=1\nregion = x\n[other]\naws_session_token = k-other\n"
    )
    host.setenv("AWS_REGION", "eu-central-1")
    host.setenv("AWS_PROFILE", "mine")
    assert way_to("bedrock/m")[1] == ("k/of+mine=1",)


def test_a_package_that_is_missing_is_named_with_its_extra(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    export(host, "bedrock", tmp_path)
    host.setattr("pytest_benchflow.proxy._providers.is_there", lambda _name: False)
    with pytest.raises(ProviderError, match=r"boto3 is not installed: pip install 'pytest-benchflow\[bedrock\]'"):
        provider_route("bedrock/m", "chat")


async def asked_of(model: str, path: str, body: Any, tmp_path: Path) -> ModelRequest:
    """Ask a model through the gateway; return what its provider, which is served here, got."""
    upstream = ScriptedUpstream([ScriptTurn(text="hi")])
    async with serving(upstream) as url:
        route = provider_route(model.replace("URL", url.removesuffix("/v1")))
        assert isinstance(route.upstream, RoutedUpstream)
        way = route.upstream.way
        own = {name: re.sub(r"https://(own\.azure|openrouter\.ai/api/v1)", url, at) for name, at in way.natives.items()}
        route.upstream.way = replace(way, natives=own)
        async with door(tmp_path / "run", route.upstream, secrets=route.secrets) as agent:
            answer = await agent.post(body, path)
            assert answer.status == 200, answer.raw
        (asked,) = upstream.requests
        return asked


AZURE_PATHS = {
    "chat": (CHAT, "/v1/openai/deployments/m/chat/completions?api-version=2025-04-01"),
    "responses": (PATHS["responses"], "/v1/openai/responses?api-version=2025-04-01"),
    "azure-client": (
        "/openai/deployments/other/chat/completions?api-version=2020-01-01",
        "/v1/openai/deployments/m/chat/completions?api-version=2025-04-01",
    ),
}


@pytest.mark.parametrize("case", AZURE_PATHS)
def test_azure_gets_its_deployment_version_and_key(case: str, host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, expected = AZURE_PATHS[case]
    export(host, "azure", tmp_path)

    async def work() -> None:
        body = {"model": "x", "input": "hi"} if case == "responses" else asking("hi")
        asked = await asked_of("azure/m", path, body, tmp_path)
        assert asked.path == expected
        headers = {name.lower(): value for name, value in asked.headers.items()}
        assert (headers.get("api-key"), headers.get("authorization")) == ("k-azure", None)

    run(work())


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_openrouter_gets_a_bearer_in_every_format(dialect: str, host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    export(host, "openrouter", tmp_path)
    bodies = {"chat": asking("hi"), "responses": {"model": "m", "input": "hi"}}
    body = bodies.get(dialect, {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]})

    async def work() -> None:
        asked = await asked_of("openrouter/vendor/m", PATHS[dialect], body, tmp_path)
        headers = {name.lower(): value for name, value in asked.headers.items()}
        assert (headers.get("authorization"), headers.get("x-api-key")) == ("Bearer k-openrouter", None)
        assert json.loads(asked.body)["model"] == "vendor/m"

    run(work())


def test_a_google_server_by_its_url_is_spoken_to_in_its_format(host: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host.setenv("BENCHFLOW_MODEL_API_KEY", "k-server")

    async def work() -> None:
        body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        asked = await asked_of("gemini/g@URL", GEMINI, body, tmp_path)
        headers = {name.lower(): value for name, value in asked.headers.items()}
        assert (asked.path, headers["x-goog-api-key"]) == ("/v1beta/models/g:generateContent", "k-server")

    run(work())


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_answer_that_takes_too_long_is_ended(streamed: bool, tmp_path: Path) -> None:
    async def work() -> None:
        turn = ScriptTurn(text="a b c d e f", pause=60) if streamed else ScriptTurn(hang=True)
        async with serving(ScriptedUpstream([turn])) as url:
            upstream = RoutedUpstream(Way(model="m", natives={"chat": url}, timeout=0.5))
            async with door(tmp_path / "run", upstream) as agent:
                answer = await agent.post(asking("x", stream=streamed))
                (record,) = agent.records()
                if streamed:
                    assert answer.cut
                    assert "--benchflow-model-timeout" in record["error"]["message"]
                else:
                    assert (answer.status, record["response"]["status_code"]) == (504, 504)
                    assert "0.5 s (--benchflow-model-timeout)" in answer.json["error"]["message"]

    run(work())


def test_a_rejected_key_is_not_tried_again(tmp_path: Path) -> None:
    async def work() -> None:
        provider = ScriptedUpstream([ScriptTurn(status=401, error="no such key", repeat=True)])
        async with serving(provider) as url:
            upstream = RoutedUpstream(Way(model="m", natives={"chat": url}, key="k", key_source="SOME_KEY"))
            heard: list[tuple[str, str | None]] = []
            upstream.rejected = lambda source, said: heard.append((source, said))
            async with door(tmp_path / "run", upstream) as agent:
                answers = [await agent.post(asking("x")) for _ in range(3)]
        assert [answer.status for answer in answers] == [401, 401, 401]
        assert "no such key" in answers[0].json["error"]["message"]
        assert "is not asked again" in answers[1].json["error"]["message"]
        assert len(provider.requests) == 1
        told = {record["metadata"]["rejected"] for record in agent.records()}
        host = URL(url).authority
        assert heard == [("SOME_KEY", f"{host} answered 401")]
        assert told == {f"{host} answered 401 to the key in SOME_KEY"}

    run(work())


def test_a_rejected_key_stays_so_whatever_is_answered_to_a_request_sent_before(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = RoutedUpstream(Way(model="m", natives={"chat": "http://127.0.0.1:9"}, key="k", key_source="A_KEY"))

        async def nothing() -> AsyncIterator[bytes]:
            return
            yield b""

        for status in (401, 403):
            await upstream._judged(ModelResponse(status, {}, nothing(), {}), "chat")
        async with door(tmp_path / "run", upstream) as agent:
            assert (await agent.post(asking("x"))).status == 401

    run(work())


class Google(ScriptedUpstream):
    """A provider that names the key as the reason of its errors, if it is to."""

    def __init__(self, turns: list[ScriptTurn], *, names_key: bool | None) -> None:
        super().__init__(turns)
        self.names_key = names_key

    async def send(self, request: ModelRequest) -> ModelResponse:
        answer = await super().send(request)
        if answer.status < 400 or not self.names_key:
            return answer
        body = json.loads(b"".join([chunk async for chunk in answer.chunks]))
        body["error"]["details"] = [{"reason": "API_KEY_INVALID", "domain": "googleapis.com"}]

        async def chunks() -> AsyncIterator[bytes]:
            yield json.dumps(body).encode()

        return ModelResponse(answer.status, answer.headers, chunks(), answer.metadata)


@pytest.mark.parametrize(
    ("status", "said", "certain"),
    [(403, "not this one", False), (400, "not valid", True), (400, 'unknown: "API_KEY_INVALID"', None)],
    ids=["forbidden", "googles-way", "quoted"],
)
def test_a_key_is_in_doubt_after_a_403_and_rejected_by_googles_400(
    status: int, said: str, certain: bool | None, tmp_path: Path
) -> None:
    async def work() -> None:
        provider = Google(
            [ScriptTurn(status=status, error=said), ScriptTurn(text="ok", repeat=True)], names_key=certain
        )
        async with serving(provider) as url:
            upstream = RoutedUpstream(Way(model="m", natives={"generateContent": url}, key="k", key_source="SOME_KEY"))
            heard: list[tuple[str, str | None]] = []
            upstream.rejected = lambda source, said: heard.append((source, said))
            async with door(tmp_path / "run", upstream) as agent:
                first, second = [await agent.post({"contents": []}, GEMINI) for _ in range(2)]
                rejected = agent.endpoint.rejected
        assert (first.status, first.json["error"]["message"]) == (status, said)
        assert second.status == (401 if certain else 200)
        assert bool(rejected) == bool(certain)
        host = URL(url).authority
        assert heard == ([] if certain is None else [("SOME_KEY", f"{host} answered {status}" if certain else None)])
        assert ("rejected" in agent.records()[0]["metadata"]) == (certain is not None)

    run(work())


def test_googles_400_that_breaks_off_is_recorded_as_any_answer_that_does(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving(ScriptedUpstream([ScriptTurn(status=400, error="no contents", cut=9)])) as url:
            upstream = RoutedUpstream(Way(model="m", natives={"generateContent": url}, key="k", key_source="SOME_KEY"))
            async with door(tmp_path / "run", upstream) as agent:
                await agent.post({"contents": []}, GEMINI)
                (record,) = agent.records()
        assert (record["metadata"].get("upstream_status"), "broke off" in record["error"]["message"]) == (400, True)

    run(work())


REJECTIONS = {
    "unauthorized": (401, "no such key k-server", "401 no such key (left out)"),
    "forbidden": (403, "not in this country", "403 not in this country"),
    "empty-request": (400, "messages is empty", None),
    "unknown-model": (404, "no such model", None),
    "googles-way": (400, "API_KEY_INVALID", "400 API_KEY_INVALID"),
    "broken": (500, "oh no", None),
}


@pytest.mark.parametrize("case", REJECTIONS)
def test_an_empty_request_tells_whether_a_key_is_taken(case: str, host: pytest.MonkeyPatch) -> None:
    status, said, expected = REJECTIONS[case]
    host.setenv("BENCHFLOW_MODEL_API_KEY", "k-server")

    async def work() -> None:
        provider = ScriptedUpstream([ScriptTurn(status=status, error=said)])
        async with serving(provider) as url:
            assert await rejection(provider_route(f"vllm/m@{url}"), Translation("unused")) == expected
        (asked,) = provider.requests
        assert json.loads(asked.body) == {"model": "m", "messages": [], "max_tokens": 1}

    run(work())


def test_nobody_is_asked_about_no_key(host: pytest.MonkeyPatch) -> None:
    host.delenv("BENCHFLOW_MODEL_API_KEY", raising=False)

    async def work() -> None:
        provider = ScriptedUpstream([])
        async with serving(provider) as url:
            assert await rejection(provider_route(f"vllm/m@{url}"), Translation("unused")) is None
        assert provider.requests == []

    run(work())
