"""Every type of item, block and part that the official clients know, and what becomes of it.

The types are those of the clients' typed unions (openai, anthropic with its beta, google-genai). A mapped one has an
example that says `MARK`; all others are named as unsupported, so that a row with one is refused and never cut short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "said-here"
Example = dict[str, Any]


@dataclass(frozen=True, repr=False)
class Place:
    """Somewhere in a history that holds one of several types."""

    format: str
    put: Callable[[Example], dict[str, Any]]  # an item -> a request that holds it there
    mapped: dict[str, Example]
    unmapped: str  # types, with spaces between
    answer: Callable[[Example], dict[str, Any]] | None = None  # an item -> an answer that holds it there

    @property
    def unsupported(self) -> list[str]:
        return self.unmapped.split()


def _asked(**message: Any) -> dict[str, Any]:
    return {"messages": [message]}


def _choice(**message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}]}


def _output(item: Example) -> dict[str, Any]:
    return {"status": "completed", "output": [item]}


def _message(block: Example) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [block], "stop_reason": "end_turn"}


def _candidate(part: Example) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}


def _kinds(examples: list[Example]) -> dict[str, Example]:
    return {example["type"]: example for example in examples}


_CHAT_TEXT = [{"type": "text", "text": MARK}]
_INPUT_TEXT = [{"type": "input_text", "text": MARK}]
_CALL = {"call_id": MARK, "name": "f"}

PLACES = {
    "chat-role": Place(
        "chat",
        lambda item: _asked(role=item["type"], content=MARK, tool_call_id="c"),
        {role: {"type": role} for role in ("developer", "system", "user", "assistant", "tool")},
        "function",
    ),
    "chat-user-part": Place(
        "chat",
        lambda item: _asked(role="user", content=[item]),
        _kinds(_CHAT_TEXT),
        "image_url input_audio file",
    ),
    "chat-assistant-part": Place(
        "chat",
        lambda item: _asked(role="assistant", content=[item]),
        _kinds([*_CHAT_TEXT, {"type": "refusal", "refusal": MARK}]),
        "",
        lambda item: _choice(content=[item]),
    ),
    "chat-tool-call": Place(
        "chat",
        lambda item: _asked(role="assistant", tool_calls=[item]),
        _kinds(
            [
                {"type": "function", "id": "a", "function": {"name": MARK, "arguments": "{}"}},
                {"type": "custom", "id": "a", "custom": {"name": MARK, "input": "x"}},
            ]
        ),
        "",
        lambda item: _choice(content=None, tool_calls=[item]),
    ),
    "responses-item": Place(
        "responses",
        lambda item: {"input": [item]},
        _kinds(
            [
                {"type": "message", "role": "user", "content": MARK},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", **_CALL, "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a", "output": MARK},
                {"type": "custom_tool_call", **_CALL, "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "a", "output": _INPUT_TEXT},
                {"type": "local_shell_call", "call_id": MARK, "action": {"type": "exec", "command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "a", "output": MARK},
                {"type": "shell_call", "call_id": MARK, "action": {"commands": ["ls"]}},
                {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": MARK, "stderr": ""}]},
                {"type": "apply_patch_call", "call_id": MARK, "operation": {"type": "delete_file", "path": "x"}},
                {"type": "apply_patch_call_output", "call_id": "a", "status": MARK},
            ]
        ),
        "file_search_call computer_call computer_call_output web_search_call tool_search_call tool_search_output "
        "additional_tools configuration_update compaction compaction_trigger image_generation_call "
        "code_interpreter_call mcp_list_tools mcp_approval_request mcp_approval_response mcp_call item_reference "
        "program program_output",
    ),
    "responses-output": Place(
        "responses",
        lambda item: {"input": [item]},
        _kinds(
            [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": MARK}]},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", **_CALL, "arguments": "{}"},
                {"type": "custom_tool_call", **_CALL, "input": "x"},
                {"type": "local_shell_call", "call_id": MARK, "action": {"type": "exec", "command": ["ls"]}},
                {"type": "shell_call", "call_id": MARK, "action": {"commands": ["ls"]}},
                {"type": "apply_patch_call", "call_id": MARK, "operation": {"type": "delete_file", "path": "x"}},
            ]
        ),
        "file_search_call web_search_call computer_call computer_call_output program program_output tool_search_call "
        "tool_search_output additional_tools compaction image_generation_call code_interpreter_call mcp_call "
        "mcp_list_tools mcp_approval_request mcp_approval_response",
        _output,
    ),
    "responses-message-part": Place(
        "responses",
        lambda item: {"input": [{"type": "message", "role": "user", "content": [item]}]},
        _kinds(_INPUT_TEXT),
        "input_image input_file",
    ),
    "responses-output-part": Place(
        "responses",
        lambda item: {"input": [{"type": "message", "role": "assistant", "content": [item]}]},
        _kinds([{"type": "output_text", "text": MARK}, {"type": "refusal", "refusal": MARK}]),
        "",
        lambda item: _output({"type": "message", "role": "assistant", "content": [item]}),
    ),
    "responses-result-part": Place(
        "responses",
        lambda item: {"input": [{"type": "function_call_output", "call_id": "a", "output": [item]}]},
        _kinds(_INPUT_TEXT),
        "input_image input_file",
    ),
    "messages-user-block": Place(
        "messages",
        lambda item: _asked(role="user", content=[item]),
        _kinds([*_CHAT_TEXT, {"type": "tool_result", "tool_use_id": "a", "content": MARK}]),
        "image document search_result container_upload tool_addition tool_removal",
    ),
    "messages-assistant-block": Place(
        "messages",
        lambda item: _asked(role="assistant", content=[item]),
        _kinds(
            [
                *_CHAT_TEXT,
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "tool_use", "id": MARK, "name": "f", "input": {}},
            ]
        ),
        "server_tool_use web_search_tool_result web_fetch_tool_result advisor_tool_result code_execution_tool_result "
        "bash_code_execution_tool_result text_editor_code_execution_tool_result tool_search_tool_result mcp_tool_use "
        "mcp_tool_result mcp_tool_listing container_upload compaction fallback",
        _message,
    ),
    "messages-result-block": Place(
        "messages",
        lambda item: _asked(role="user", content=[{"type": "tool_result", "tool_use_id": "a", "content": [item]}]),
        _kinds(_CHAT_TEXT),
        "image document search_result tool_reference browser_state",
    ),
    "generateContent-model-part": Place(
        "generateContent",
        lambda item: {"contents": [{"role": "model", "parts": [_part(item)]}]},
        _kinds(
            [
                {"type": "text", "text": MARK},
                {"type": "functionCall", "functionCall": {"id": MARK, "name": "f", "args": {}}},
            ]
        ),
        "inlineData fileData executableCode codeExecutionResult toolCall toolResponse audioTranscription",
        lambda item: _candidate(_part(item)),
    ),
    "generateContent-user-part": Place(
        "generateContent",
        lambda item: {"contents": [{"role": "user", "parts": [_part(item)]}]},
        _kinds(
            [
                {"type": "text", "text": MARK},
                {
                    "type": "functionResponse",
                    "functionResponse": {"id": "a", "name": "f", "response": {"result": MARK}},
                },
            ]
        ),
        "inlineData fileData executableCode codeExecutionResult toolCall toolResponse audioTranscription functionCall",
    ),
}


def _part(item: Example) -> Example:
    """Return an item as a part, whose type is the name of what it holds."""
    kept = {key: value for key, value in item.items() if key != "type"}
    return kept or {item["type"]: {}}
