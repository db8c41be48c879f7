"""Keep the calls of Google's format and their results together where LiteLLM translates it, which drops their ids."""

from __future__ import annotations

import hashlib
import re
from functools import partial, wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pytest_benchflow.dialects._generatecontent_turns import field
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

_CALL = ("functionCall", "function_call")
_RESULT = ("functionResponse", "function_response")
# What every provider takes for an id.
_TAKEN = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")


class PairingError(ValueError):
    """A result in a conversation belongs to one of several calls, and nothing says to which."""

    status_code = 400


def paired(contents: Any) -> list[Any]:
    """Return contents in which each call, and each result of one, has an id.

    A result without one belongs to the first call of its name that has none yet, as in Google's own way.
    Raises: PairingError where that leaves a call of the same name over.
    """
    told, waiting = [], _Waiting()
    for position, content in enumerate([contents] if isinstance(contents, dict) else sequence(contents)):
        if not isinstance(content, dict):
            told.append(content)
            continue
        parts, role = [], content.get("role", "user")
        if role == "model" and waiting.answering:
            waiting.end_turn()
        for number, part in enumerate(sequence(content.get("parts"))):
            call = field(mapping(part), *_CALL) if role == "model" else None
            result = field(mapping(part), *_RESULT) if role != "model" else None
            news = {}
            if isinstance(call, dict):
                news = {_CALL[0]: {**call, "id": waiting.called(call, f"{position}_{number}")}}
            elif isinstance(result, dict):
                news = {_RESULT[0]: {**result, "id": waiting.answered(result)}}
            parts.append({**part, **news} if news else part)
        waiting.answering = role != "model"
        # Results may come in a role of their own, which LiteLLM leaves out.
        named = "user" if role in ("function", "tool") else role
        told.append({**content, "role": named, "parts": parts} if parts else content)
    waiting.end_turn()
    return told


class _Waiting:
    """The calls of the model's last turn that have no result yet, as (id of the client, id sent, name)."""

    def __init__(self) -> None:
        self.answering = False  # results may have come
        self._calls: list[tuple[str, str, str]] = []
        self._by_order: set[str] = set()  # the names whose results came without an id that a call has
        self._used: set[str] = set()

    def called(self, call: Mapping[str, Any], place: str) -> str:
        """Return the id that is sent of a call."""
        own, name = str(call.get("id") or ""), str(call.get("name") or "")
        sent = _sendable(own or f"call_{place}")
        sent = f"call_{place}" if sent in self._used else sent
        self._used.add(sent)
        self._calls.append((own, sent, name))
        return sent

    def answered(self, result: Mapping[str, Any]) -> str:
        """Return the id that is sent of a result."""
        own, name = str(result.get("id") or ""), str(result.get("name") or "")
        found = next((call for call in self._calls if own and call[0] == own), None)
        if found is None:
            found = next((call for call in self._calls if call[2] == name and not (own and call[0])), None)
            self._by_order.add(name)
        if found is None:
            return _sendable(own or f"call_{name}")
        self._calls.remove(found)
        return found[1]

    def end_turn(self) -> None:
        """Look whether all results of a name came, where only their order says whose they are."""
        over = next((name for _, _, name in self._calls if name in self._by_order), None)
        self._calls.clear()
        self._by_order.clear()
        if over is not None:
            raise PairingError(
                f"there are fewer results of {over} than calls of it before them, and no ids that say whose they are; "
                "give each functionResponse the id of its functionCall"
            )


def _sendable(own: str) -> str:
    return own if _TAKEN.match(own) else f"call_{hashlib.sha256(own.encode(errors='surrogatepass')).hexdigest()[:24]}"


def in_order_of_calls(dialect: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request of another format whose results are in the order of their calls: older Geminis know no ids."""
    name = {"chat": "messages", "messages": "messages", "responses": "input"}.get(dialect)
    items = body.get(name) if name else None
    if name is None or not isinstance(items, list):
        return body
    calls: list[str] = []
    ordered: list[Any] = []
    for is_result, run in groupby(items, lambda item: bool(_results_of(mapping(item)))):
        news = list(run)
        if is_result and dialect == "messages":
            news = [{**each, "content": sorted(each["content"], key=partial(_place, calls))} for each in news]
        elif is_result:
            news.sort(key=partial(_place, calls))
        else:
            calls = [call for item in news for call in _calls_of(mapping(item))] or calls
        ordered += news
    return {**body, name: ordered}


def _calls_of(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ids of the calls in an item of a conversation, of whichever format."""
    if item.get("type") == "function_call":
        yield str(item.get("call_id"))
    blocks = sequence(item.get("content")) if item.get("role") == "assistant" else ()
    uses = (block for block in map(mapping, blocks) if block.get("type") == "tool_use")
    yield from (str(mapping(call).get("id")) for call in (*sequence(item.get("tool_calls")), *uses))


def _results_of(item: Mapping[str, Any]) -> list[str]:
    """Return the ids of the calls whose results are in an item, or a block of one."""
    own = item.get("tool_call_id") if item.get("role") == "tool" else None
    own = item.get("call_id") if item.get("type") == "function_call_output" else own
    own = item.get("tool_use_id") if item.get("type") == "tool_result" else own
    blocks = item.get("content") if item.get("role") == "user" else ()
    return [str(own)] if own else [each for block in sequence(blocks) for each in _results_of(mapping(block))]


def _place(calls: list[str], item: Any) -> int:
    """Return where an item belongs among its neighbours: what is no result of these calls comes after them."""
    found = [calls.index(each) for each in _results_of(mapping(item)) if each in calls]
    return min(found, default=len(calls))


def keep_ids(adapter: ModuleType) -> None:
    """Let LiteLLM's translation of Google's format keep the ids of calls, and lose none; once for a process."""
    if getattr(adapter, "keeps_ids", False):
        return
    adapter.keeps_ids = True  # type: ignore[attr-defined]
    adapter._genai_tool_call = _with_id(adapter._genai_tool_call, "id", _CALL)  # type: ignore[attr-defined]
    adapter._genai_tool_response = _with_id(  # type: ignore[attr-defined]
        adapter._genai_tool_response, "tool_call_id", _RESULT
    )
    translates = adapter.GoogleGenAIAdapter
    requested = translates.translate_generate_content_to_completion
    whole = translates._transform_openai_message_to_google_genai_parts
    streamed = translates.translate_streaming_completion_to_generate_content
    in_parts = translates._transform_openai_delta_to_google_genai_parts_with_accumulation

    @wraps(requested)
    def request(self: Any, model: str, contents: Any, *more: Any, **told: Any) -> Any:
        return requested(self, model, paired(contents), *more, **told)

    @wraps(whole)
    def message(self: Any, message: Any) -> Any:
        calls = [call for call in message.tool_calls or () if getattr(call, "function", None)]
        for call in calls:
            _check_arguments(call.function.name, call.function.arguments)
        return _named(whole(self, message), (call.id for call in calls))

    @wraps(in_parts)
    def delta(self: Any, delta: Any, wrapper: Any) -> Any:
        ids = wrapper.__dict__.setdefault("ids_of_calls", {})
        parts = list(in_parts(self, delta.model_copy(update={"tool_calls": None}), wrapper))
        for call in delta.tool_calls or ():
            ids[call.index] = ids.get(call.index) or getattr(call, "id", None)
            one = delta.model_copy(update={"tool_calls": [call], "content": None})
            parts += _named(in_parts(self, one, wrapper), [ids[call.index]])
        return parts

    @wraps(streamed)
    def chunk(self: Any, response: Any, wrapper: Any) -> Any:
        choice = response.choices[0] if response.choices else None
        told = streamed(self, response, wrapper)
        if choice is None or not getattr(choice, "finish_reason", None):
            return told
        left = list(_left(wrapper))
        held = told or wrapper.finish_chunk_awaiting_usage
        if left and held:
            held["candidates"][0]["content"]["parts"] = [*held["candidates"][0]["content"]["parts"], *left]
        return told

    translates.translate_generate_content_to_completion = request
    translates._transform_openai_message_to_google_genai_parts = message
    translates._transform_openai_delta_to_google_genai_parts_with_accumulation = delta
    translates.translate_streaming_completion_to_generate_content = chunk


def _with_id(made: Any, name: str, keys: tuple[str, str]) -> Any:
    @wraps(made)
    def with_id(part: Any) -> Any:
        told = made(part)
        own = mapping(field(mapping(part), *keys)).get("id")
        if told is not None and own:
            told[name] = own
        return told

    return with_id


def _named(parts: Iterable[Any], ids: Iterable[str | None]) -> list[Any]:
    """Return parts whose calls have these ids, in this order."""
    left = iter(ids)
    named = []
    for part in parts:
        own = next(left, None) if "functionCall" in part else None
        named.append({**part, "functionCall": {"id": own, **part["functionCall"]}} if own else part)
    return named


def _left(wrapper: Any) -> Iterator[dict[str, Any]]:
    """Yield the calls of a stream that has come to its end whose arguments were no JSON until then: none at all."""
    for index, call in tuple(wrapper.accumulated_tool_calls.items()):
        _check_arguments(call["name"], call["arguments"])
        del wrapper.accumulated_tool_calls[index]
        own = getattr(wrapper, "ids_of_calls", {}).get(index)
        yield from _named([{"functionCall": {"name": call["name"], "args": {}}}], [own])


def _check_arguments(name: str | None, arguments: str | None) -> None:
    """Raise ValueError for arguments that Google's format cannot hold, for which LiteLLM would send others, or none."""
    try:
        readable = isinstance(loads(arguments or "{}"), dict)
    except ValueError:
        readable = False
    if not readable:
        raise ValueError(f"the arguments of the call {name} are no JSON object")
