"""Turn a request of any wire format into a call of LiteLLM, and its answer back into that format's bytes."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_benchflow.proxy._litellm_google import keep_ids
from pytest_benchflow.records.jsontext import dumps, loads
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

# Fields of the formats whose names are also settings of LiteLLM's own; every other such setting is not an agent's.
_OFFICIAL = frozenset({"metadata"})
_SETTINGS = frozenset({"timeout", "base_url", "extra_headers", "extra_body", "extra_query", "custom_llm_provider"})
_CREDENTIALS = ("aws_", "vertex_", "azure_", "litellm_")
# What agents send for a provider's own use: it changes no answer, and only OpenAI's formats have a place for it.
_HINTS = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store", "user")
# In these an absent value says something else than a null.
_NULLS_KEPT = frozenset({"content", "finish_reason", "stop_reason", "stop_sequence"})
_CONTENT_FIELDS = {"generation_config": "generationConfig", "system_instruction": "systemInstruction"}
_USAGE = re.compile(rb'"(?:usage|usageMetadata)"\s*:\s*\{')
_COST = re.compile(rb'"cost"\s*:\s*[0-9]')
_REASONED = re.compile(rb"reasoning_tokens|thinking_tokens|thoughtsTokenCount")
_CACHED = re.compile(rb'"(?:cached_tokens|cache_read_input_tokens|cacheReadInputTokens)"\s*:\s*(\d{1,18})\b')
_USAGES = ("usage", "usageMetadata")
_REASONING_DETAILS = ("completion_tokens_details", "output_tokens_details")
_PASSED = "litellm.proxy.pass_through_endpoints"


class _Passed:
    """What LiteLLM passes streams through to log them: here they are only passed through."""

    @staticmethod
    async def chunk_processor(*, response: Any, **_told: Any) -> AsyncIterator[bytes]:
        async for chunk in response.aiter_bytes():
            yield chunk

    @staticmethod
    async def route_streaming_logging_to_handler(**_told: Any) -> None:
        return

    schedule_stream_failure_logging = route_streaming_logging_to_handler


def leave_out_proxy() -> None:
    """Let streams be translated without LiteLLM's proxy, whose log of them takes a web framework; before the import."""
    for module, name in (
        ("success_handler", "PassThroughEndpointLogging"),
        ("streaming_handler", "PassThroughStreamingHandler"),
    ):
        made = ModuleType(f"{_PASSED}.{module}")
        setattr(made, name, _Passed)
        sys.modules[made.__name__] = made


def settle(litellm: Any) -> None:
    """Switch off all by which LiteLLM repeats, drops, caches or reports calls on its own."""
    litellm.drop_params = False
    litellm.modify_params = False
    litellm.num_retries = 0
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.turn_off_message_logging = True
    litellm.disable_aiohttp_transport = True  # its calls could not be seen
    litellm.callbacks = []
    litellm.cache = None
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)


def own_settings(known: frozenset[str], body: Mapping[str, Any]) -> list[str]:
    """Return the fields of a request that would steer LiteLLM rather than the model; `known` are its own."""
    steering = (known | _SETTINGS) - _OFFICIAL
    return [name for name in body if name in steering or name.startswith(_CREDENTIALS)]


def refused_hints(error: Exception, body: Mapping[str, Any]) -> list[str]:
    """Return those fields for which LiteLLM refuses a request though no answer depends on them."""
    if type(error).__name__ != "UnsupportedParamsError":
        return []
    return [name for name in _HINTS if name in body and f"'{name}'" in str(error)]


def entry(
    litellm: Any, dialect: str, body: Mapping[str, Any], *, streamed: bool
) -> tuple[Callable[..., Awaitable[Any]], dict[str, Any]]:
    """Return the function of LiteLLM that takes a format, and the request as its arguments."""
    arguments = {name: value for name, value in body.items() if name != "model"}
    if dialect == "generateContent":
        google_genai = importlib.import_module("litellm.google_genai")
        keep_ids(importlib.import_module("litellm.google_genai.adapters.transformation"))
        arguments = {_CONTENT_FIELDS.get(name, name): value for name, value in arguments.items()}
        arguments["config"] = arguments.pop("generationConfig", None) or {}
        return (google_genai.agenerate_content_stream if streamed else google_genai.agenerate_content), arguments
    functions = {"chat": litellm.acompletion, "responses": litellm.aresponses, "messages": litellm.anthropic_messages}
    return functions[dialect], {**arguments, "stream": streamed}


async def events(dialect: str, answer: Any, heard: Callable[[], bytes]) -> AsyncIterator[bytes]:
    """Yield a streamed answer as the bytes of its format; `heard` returns what the provider has said so far."""
    async for chunk in answer:
        if isinstance(chunk, bytes | str):
            raw = chunk if isinstance(chunk, bytes) else chunk.encode()
            yield b"".join(_true_lines(raw, heard)) if b'"usage' in raw else raw
            continue
        value = true_usage(plain(chunk), heard)
        kind = value.get("type") if dialect in ("responses", "messages") else None
        yield (f"event: {kind}\n".encode() if kind else b"") + b"data: " + dumps(value) + b"\n\n"
    if dialect == "chat":
        yield b"data: [DONE]\n\n"


def plain(value: Any) -> Any:
    """Return an answer of LiteLLM as JSON values, without the fields that nobody has filled in."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", warnings=False)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if inner is not None or key in _NULLS_KEPT}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def true_usage(value: Any, heard: Callable[[], bytes]) -> Any:
    """Return an answer, or an event of one, with the token counts and costs that its provider told, and no others."""
    if not isinstance(value, dict):
        return value
    parts = (value, mapping(value.get("response")), mapping(value.get("message")))
    places = [(part, name) for part in parts for name in _USAGES if isinstance(part.get(name), dict)]
    # Most events of a stream have none: looking through all that was heard at each would take its square.
    raw = heard() if places else b""
    for part, name in places:
        if not (_USAGE.search(raw) or _is_binary(raw)):
            del part[name]
            continue
        if not _COST.search(raw):
            part[name].pop("cost", None)
        if not _REASONED.search(raw):
            for details in _REASONING_DETAILS:
                part[name].pop(details, None)
        if name == "usageMetadata" and (read := _CACHED.findall(raw)) and int(read[-1]):
            # LiteLLM leaves it out for Google's format, and it has a price of its own.
            part[name].setdefault("cachedContentTokenCount", int(read[-1]))
    return value


def _is_binary(heard: bytes) -> bool:
    """Tell whether an answer is Amazon's: its last event always counts tokens, in a text of its own or encoded."""
    return b"inputTokens" in heard or b":event-type" in heard


def _true_lines(raw: bytes, heard: Callable[[], bytes]) -> Iterator[bytes]:
    for line in raw.splitlines(keepends=True):
        if not line.startswith(b"data:") or b'"usage' not in line:
            yield line
            continue
        try:
            value = loads(line[5:])
        except ValueError:
            yield line
            continue
        told = dumps(value)
        true = dumps(true_usage(value, heard))
        yield line if true == told else b"data: " + true + line[len(line.rstrip(b"\r\n")) :]
