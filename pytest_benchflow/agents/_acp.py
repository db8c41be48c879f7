"""Drive any agent that speaks the Agent Client Protocol on its standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from typing import TYPE_CHECKING, Any

from pytest_benchflow.agents._events import EventLog
from pytest_benchflow.agents._mcp import acp_servers, not_taken
from pytest_benchflow.agents._wire import Wire
from pytest_benchflow.contracts import AgentOutcome
from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.contracts import AgentContext, Process
    from pytest_benchflow.tasks.task import McpServer

START_SEC = 180.0
_CANCEL_SEC = 2.0
_EXIT_SEC = 2.0
_TICK_SEC = 0.25
# How long an agent may have been silent at the end of its time before its last word may be what was lost.
_SILENT_SEC = 60.0
_REATTACH_SEC = 30.0

# The protocol's stop reasons as outcomes; one that is not here is never taken for success.
_STOPS = {
    "end_turn": "finished",
    "max_tokens": "finished",
    "max_turn_requests": "finished",
    "refusal": "refused",
    "cancelled": "cancelled",
}

# The client side, which offers an agent nothing: it has its sandbox.
_ABOUT_US = {
    "protocolVersion": 1,
    "clientCapabilities": {
        "fs": {"readTextFile": False, "writeTextFile": False},
        "terminal": False,
        "auth": {"terminal": False},
    },
    "clientInfo": {"name": "pytest-benchflow", "version": "1"},
}


class _GaveUpError(Exception):
    """The agent broke off: it ended, answered with an error, or did not start in time."""


async def drive(
    process: Process,
    context: AgentContext,
    *,
    start_sec: float = START_SEC,
    model_id: str | None = None,
    servers: Sequence[McpServer] | None = None,
) -> AgentOutcome:
    """Run one prompt with a freshly started agent and return how it ended; the process tree is dead afterwards.

    Times are seconds: `start_sec` for the handshake, the context's limits for the prompt. An agent that takes its model
    by the protocol is told `model_id`. It is told of `servers`, None: of the task's.
    """
    session = _Session(process, context, context.task.environment.mcp_servers if servers is None else servers)
    try:
        return await session.run(start_sec, model_id)
    finally:
        await asyncio.shield(session.end())


class _Session:
    """One connection, one session, one prompt."""

    def __init__(self, process: Process, context: AgentContext, servers: Sequence[McpServer]) -> None:
        self._servers = servers
        self._process = process
        self._context = context
        self._log = EventLog(context.events)
        self._wire = Wire(process, context.log_dir, context.redact, self._log.see)
        self._connection: Any = None
        self._exit: asyncio.Task[None] | None = None
        self._id = ""

    async def run(self, start_sec: float, model_id: str | None) -> AgentOutcome:
        """Shake hands, prompt, and judge the end."""
        # Importing the protocol's own package takes most of a second: other rollouts share this loop.
        connection = await asyncio.to_thread(importlib.import_module, "acp.connection")
        self._connection = connection.Connection(self._answer, self._wire)
        self._exit = asyncio.create_task(self._watch_exit())
        try:
            await self._start(start_sec, model_id)
            self._log.write({"type": "user_message", "text": self._context.instruction})
            return await self._prompt()
        except _GaveUpError as error:
            if self._wire.broken is not None:
                raise self._wire.broken from None
            return self._outcome("crashed", error=str(error))

    async def end(self) -> None:
        """Kill the agent and everything it started, and keep what it had still to say."""
        try:
            await self._process.kill()
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        if self._exit is not None:
            self._exit.cancel()
        if self._connection is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wire.ended.wait(), _EXIT_SEC)
            await self._connection.close()
        await self._wire.finish()
        self._log.flush()

    async def _start(self, start_sec: float, model_id: str | None) -> None:
        try:
            async with asyncio.timeout(start_sec):
                about = await self._ask("initialize", _ABOUT_US)
                if not isinstance(about, dict) or about.get("protocolVersion") != 1:
                    raise _GaveUpError(
                        f"the agent answered initialize with {about!r:.200}; protocol version 1 is spoken"
                    )
                made = await self._ask("session/new", self._new_session(about))
                if not isinstance(made, dict) or not isinstance(made.get("sessionId"), str):
                    raise _GaveUpError(f"the agent answered session/new with {made!r:.200}, without a sessionId")
                self._id = made["sessionId"]
                if model_id is not None:
                    await self._choose_model(made, model_id)
        except TimeoutError:
            raise _GaveUpError(f"the agent was not ready for a prompt within {start_sec:g} s{self._tail()}") from None

    def _new_session(self, about: dict[str, Any]) -> dict[str, Any]:
        if other := not_taken(self._servers, about.get("agentCapabilities")):
            raise _GaveUpError(
                f"the agent takes no MCP server over {other.transport}, and the task has one: {other.name}"
            )
        return {"cwd": self._context.sandbox.workdir, "mcpServers": acp_servers(self._servers)}

    async def _choose_model(self, made: dict[str, Any], model_id: str) -> None:
        """Name the model, by the option that the new session offers for it where it does. Raises: _GaveUpError."""
        option = _model_option(made)
        try:
            if option is None:
                await self._ask("session/set_model", {"sessionId": self._id, "modelId": model_id})
            else:
                choice = {"sessionId": self._id, "configId": option, "value": model_id}
                await self._ask("session/set_config_option", choice)
        except _GaveUpError as error:
            raise _GaveUpError(
                f"{error}; an agent that takes its model from the environment says so in its manifest: "
                "supports_acp_set_model = false"
            ) from None

    async def _prompt(self) -> AgentOutcome:
        request = {"sessionId": self._id, "prompt": [{"type": "text", "text": self._context.instruction}]}
        turn = asyncio.create_task(self._ask("session/prompt", request))
        try:
            reason = await self._watch(turn)
            if reason is not None and (lost := await self._find_lost(turn, reason)) is not None:
                return lost
            if reason is not None and not turn.done():
                return await self._give_up(turn, reason)
            return self._judge(turn.result())
        finally:
            turn.cancel()

    async def _watch(self, turn: asyncio.Task[Any]) -> str | None:
        """Wait for the turn; return "timeout" or "idle" when a limit came first.

        Raises: _GaveUpError when a cancelled turn does not end.
        """
        context = self._context
        deadline = time.monotonic() + context.timeout_sec
        cancelling = asyncio.create_task(self._cancel_in_time())
        try:
            while True:
                now = time.monotonic()
                if now >= deadline:
                    return "timeout"
                if context.busy():
                    self._wire.last_activity = now
                wait = min(deadline - now, _TICK_SEC if context.idle_timeout_sec is not None else deadline - now)
                await asyncio.wait([turn, cancelling], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                if turn.done():
                    return None
                if cancelling.done():
                    cancelling.result()
                if context.idle_timeout_sec is not None and self._idle() >= context.idle_timeout_sec:
                    return "idle"
        finally:
            cancelling.cancel()

    async def _find_lost(self, turn: asyncio.Task[Any], reason: str) -> AgentOutcome | None:
        """Attach once more to an agent whose model has said its last word, where the way to it may lose things.

        The turn is done afterwards when its end was what was lost; an outcome says that nothing more came.
        """
        reattach = getattr(self._process, "reattach", None)
        if reattach is None or not self._context.settled() or (reason == "timeout" and self._idle() < _SILENT_SEC):
            return None
        silent = self._idle()
        self._log.write({"type": "reattach", "reason": reason, "silent_sec": round(silent, 3)})
        if await reattach():
            await asyncio.wait([turn], timeout=_REATTACH_SEC)
        if turn.done():
            return None
        error = f"its model had said all, and the agent was silent for {silent:.0f} s, also when attached to once more"
        return self._outcome("crashed", error=error, category="lost_completion", idle_before_timeout_s=round(silent, 3))

    async def _cancel_in_time(self) -> None:
        """Cancel the turn at the moment that the client side chose, if any. Raises: _GaveUpError when it goes on."""
        policy = self._context.client
        if policy.cancel is None:
            await asyncio.Event().wait()
            return
        await policy.cancel()
        self._log.write({"type": "cancel"})
        with contextlib.suppress(OSError):  # of an agent that is gone, the turn itself tells
            await self._connection.send_notification("session/cancel", {"sessionId": self._id})
        await asyncio.sleep(policy.cancel_grace_sec)
        raise _GaveUpError(f"the agent did not end its turn within {policy.cancel_grace_sec:g} s of session/cancel")

    async def _give_up(self, turn: asyncio.Task[Any], reason: str) -> AgentOutcome:
        idle, in_flight, pending = self._idle(), self._log.describe_in_flight(), self._log.in_flight()
        limit = self._context.timeout_sec if reason == "timeout" else self._context.idle_timeout_sec
        # Best effort: agents that hang in a model call ignore it, and are killed.
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CANCEL_SEC):
                await self._connection.send_notification("session/cancel", {"sessionId": self._id})
                await asyncio.wait([turn])
        self._log.write(
            {
                "type": "agent_timeout",
                "reason": reason,
                "timeout_sec": limit,
                "pending_tool_call_ids": pending,
                "terminal_trajectory_complete": True,
            }
        )
        return self._outcome(reason, idle_before_timeout_s=round(idle, 3), in_flight_at_timeout=in_flight)

    def _judge(self, answer: Any) -> AgentOutcome:
        reason = answer.get("stopReason") if isinstance(answer, dict) else None
        if isinstance(answer, dict):
            self._log.keep_metrics(answer.get("_meta"))
            if self._log.usage is None and isinstance(answer.get("usage"), dict):
                self._log.usage = answer["usage"]
        stop = _STOPS.get(str(reason))
        if stop is None:
            known = ", ".join(_STOPS)
            return self._outcome(
                "crashed", error=f"the agent ended its turn with stopReason {reason!r}, not one of: {known}"
            )
        return self._outcome(stop, stop_reason=reason)

    def _outcome(self, stop: str, *, error: str | None = None, category: str = "agent", **fields: Any) -> AgentOutcome:
        self._log.write(
            {
                "type": "stop",
                "outcome": stop,
                "stop_reason": fields.get("stop_reason"),
                "error": error,
                "stray_stdout": {"lines": self._wire.stray_lines, "bytes": self._wire.stray_bytes},
            }
        )
        return AgentOutcome(
            stop=stop,
            error=error,
            error_category=category if error else None,
            n_tool_calls=len(self._log.tool_calls),
            reported_usage=self._log.usage,
            **fields,
        )

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        request_error = importlib.import_module("acp.exceptions").RequestError
        try:
            return await self._connection.send_request(method, params)
        except request_error as error:
            raise _GaveUpError(f"the agent answered {method} with error {error.code}: {error}{_data(error)}") from None
        except OSError:
            raise _GaveUpError(f"the agent {await self._ending()} during {method}{self._tail()}") from None

    async def _watch_exit(self) -> None:
        """End the session of an agent that is gone although something it left behind holds its output open."""
        with contextlib.suppress(SandboxError):  # of what broke, whoever reads is told
            await self._process.wait()
        try:
            await asyncio.wait_for(self._wire.ended.wait(), _EXIT_SEC)
        except TimeoutError:
            await self._process.kill()

    async def _ending(self) -> str:
        if self._wire.fault:
            return self._wire.fault
        try:
            code = await asyncio.wait_for(self._process.wait(), _EXIT_SEC)
        except SandboxError as error:
            return f"is out of reach ({error})"
        except TimeoutError:
            return "closed its output"
        return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"

    async def _answer(self, method: str, params: Any, is_notification: bool) -> Any:
        """Answer what an agent asks of its client: permission is given or refused, nothing else is offered."""
        if is_notification:
            return None
        exceptions = importlib.import_module("acp.exceptions")
        if method != "session/request_permission" or not isinstance(params, dict):
            raise exceptions.RequestError.method_not_found(method)
        given = params.get("options")
        options = [option for option in given if isinstance(option, dict)] if isinstance(given, list) else []
        chosen = _option(options, "allow" if self._context.client.allow else "reject")
        call = params.get("toolCall")
        call = call if isinstance(call, dict) else {}
        self._log.write(
            {
                "type": "permission",
                "tool_call_id": call.get("toolCallId"),
                "title": call.get("title"),
                "options": options,
                "outcome": "selected" if chosen is not None else "cancelled",
                "option_id": chosen,
            }
        )
        if chosen is None:
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": chosen}}

    def _idle(self) -> float:
        return time.monotonic() - self._wire.last_activity

    def _tail(self) -> str:
        text = self._wire.stderr_tail.decode("utf-8", "backslashreplace").strip()
        return f"; the end of its stderr:\n{self._context.redact(text)}" if text else "; its stderr is empty"


def _option(options: list[dict[str, Any]], answer: str) -> str | None:
    """Return the id of the option that allows or rejects the call, once rather than always; None: there is none."""
    for kind in (f"{answer}_once", f"{answer}_always"):
        for option in options:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return str(option["optionId"])
    return None


def _model_option(made: dict[str, Any]) -> str | None:
    """Return the id of the option by which a new session takes its model, None when it offers none."""
    options = made.get("configOptions")
    for option in options if isinstance(options, list) else ():
        if isinstance(option, dict) and option.get("category") == "model" and isinstance(option.get("id"), str):
            return str(option["id"])
    return None


def _data(error: Any) -> str:
    data = getattr(error, "data", None)
    return f" {data!r:.2000}" if data is not None else ""
