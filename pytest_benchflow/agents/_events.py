"""Turn an agent's protocol messages into the events of acp_trajectory.jsonl, and count what they say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.records.journal import Journal

_CHUNKS = {
    "agent_message_chunk": "agent_message",
    "agent_thought_chunk": "agent_thought",
    "user_message_chunk": "user_message",
}
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")
_OPEN = ("pending", "in_progress")


class EventLog:
    """Writes one session's events; chunks of one message become one event.

    Law: an event is written when it is complete, and `flush` writes what is still open.
    """

    def __init__(self, events: Journal) -> None:
        self.tool_calls: dict[str, str] = {}  # id -> title, in order of appearance
        self.usage: dict[str, Any] | None = None
        self._cost: Any = None  # as the latest usage_update told it, which metrics in metadata may leave out
        self._events = events
        self._open: dict[str, None] = {}
        self._key: Any = None
        self._type = ""
        self._text: list[str] = []

    def write(self, event: dict[str, Any]) -> None:
        """Write an event of our own after what the agent said before it."""
        self.flush()
        self._events.append(event)

    def see(self, message: Mapping[str, Any]) -> None:
        """Record a message if it is a session update; everything else passes unseen."""
        params = message.get("params")
        if message.get("method") != "session/update" or not isinstance(params, dict):
            return
        update = params.get("update")
        if not isinstance(update, dict) or not isinstance(update.get("sessionUpdate"), str):
            return
        meta = update.get("_meta") or params.get("_meta")
        self._keep_usage(meta, update)
        if update["sessionUpdate"] in _CHUNKS:
            self._chunk(_CHUNKS[update["sessionUpdate"]], update, meta)
        else:
            self.write(self._event(update))

    def flush(self) -> None:
        """Write the message whose chunks are still being gathered."""
        if self._text:
            self._events.append({"type": self._type, "text": "".join(self._text)})
        self._key, self._text = None, []

    def in_flight(self) -> list[str]:
        """Return the ids of tool calls that were started and not ended."""
        return list(self._open)

    def describe_in_flight(self) -> str | None:
        """Return the last tool call in flight as `id (title)`, None when there is none."""
        if not self._open:
            return None
        last = next(reversed(self._open))
        return f"{last} ({self.tool_calls[last]})"

    def _chunk(self, kind: str, update: dict[str, Any], meta: Any) -> None:
        content = update.get("content")
        if not isinstance(content, dict) or not isinstance(content.get("text"), str):
            self.write({"type": kind, "content": content})
            return
        # Agents that send no message id repeat their metadata within a message and change it between two.
        key = (kind, update.get("messageId"), repr(meta))
        if key != self._key:
            self.flush()
        self._key, self._type = key, kind
        self._text.append(content["text"])

    def _event(self, update: dict[str, Any]) -> dict[str, Any]:
        kind = update["sessionUpdate"]
        fields = {
            _HUMP.sub(r"_\1", key).lower(): value
            for key, value in update.items()
            if key not in ("sessionUpdate", "_meta")
        }
        if kind not in ("tool_call", "tool_call_update"):
            return {"type": kind, **fields}
        call, title, status = str(fields.pop("tool_call_id", "")), fields.get("title"), fields.get("status")
        self.tool_calls.setdefault(call, "")
        if isinstance(title, str) and title:
            self.tool_calls[call] = title
        if status in _OPEN or (kind == "tool_call" and status is None):
            self._open[call] = None
        elif status is not None:
            self._open.pop(call, None)
        shape = {"kind": "other", "title": "", "status": "pending", "content": []} if kind == "tool_call" else {}
        return {"type": kind, "tool_call_id": call, **shape, **fields}

    def _keep_usage(self, meta: Any, update: dict[str, Any]) -> None:
        if update["sessionUpdate"] == "usage_update":
            self.usage = {key: value for key, value in update.items() if key not in ("sessionUpdate", "_meta")}
            self._cost = update.get("cost") or self._cost
        self.keep_metrics(meta)

    def keep_metrics(self, meta: Any) -> None:
        """Keep token counts an agent reports in metadata, such as `openhands.dev/metrics`; the latest wins."""
        if not isinstance(meta, dict):
            return
        places = [meta, meta["field_meta"]] if isinstance(meta.get("field_meta"), dict) else [meta]
        for place in places:
            for value in place.values():
                if isinstance(value, dict) and "input_tokens" in value:
                    self.usage = {"cost": self._cost, **value} if self._cost else value
