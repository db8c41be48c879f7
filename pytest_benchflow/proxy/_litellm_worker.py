"""The process that translates between wire formats with LiteLLM: it answers on a socket that only its user can open.

It lives as long as a process of the session holds a lease, which is a connection: the system closes it also for one
that was killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import importlib
import os
import selectors
import shutil
import socket
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.proxy import _litellm_calls, _litellm_wire
from pytest_benchflow.proxy._litellm_frames import CALLS, DATA, LEASES, LOCK, NOTE, READY, frame
from pytest_benchflow.proxy._litellm_google import in_order_of_calls
from pytest_benchflow.proxy._litellm_seen import failure, headers_of, no_stream, seen
from pytest_benchflow.records.jsontext import dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from aiohttp import web

_OF_GOOGLE = ("gemini/", "vertex_ai/")
_NO_LIMIT = 10**8  # seconds: LiteLLM takes a number, and without one its own


class Leases:
    """Those who hold this process alive; when the last one is gone, so is the process, with its directory."""

    def __init__(self, directory: Path, first: socket.socket) -> None:
        self._directory = directory
        self._ready = False
        self._turn = threading.Lock()
        self._held: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / LEASES))
        self._listener.listen(256)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._hold(first)

    def watch(self) -> None:
        """Take and miss leases for ever; never returns."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._heard(key.fileobj)
            if not self._held:
                self._end()

    def ready(self) -> None:
        """Tell all who wait, and all who come, that calls are answered."""
        with self._turn:
            self._ready = True
            for lease in self._held:
                _tell(lease)

    def _accept(self) -> None:
        try:
            while True:
                self._hold(self._listener.accept()[0])
        except BlockingIOError:
            return

    def _hold(self, lease: socket.socket) -> None:
        with self._turn:
            lease.setblocking(False)
            self._held.add(lease)
            self._selector.register(lease, selectors.EVENT_READ)
            if self._ready:
                _tell(lease)

    def _heard(self, lease: socket.socket) -> None:
        try:
            if lease.recv(64):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        with self._turn:
            self._selector.unregister(lease)
            self._held.discard(lease)
            lease.close()

    def _end(self) -> None:
        """End the process, unless somebody who had the lock came in the meantime."""
        with (self._directory / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._accept()
            if not self._held:
                shutil.rmtree(self._directory, ignore_errors=True)
                os._exit(0)


def _tell(lease: socket.socket) -> None:
    try:
        lease.send(READY)
    except OSError:
        return  # it is gone, and is missed when it is read


class Translator:
    """Answers calls: a line of JSON that says how, then the agent's body; frames come back."""

    def __init__(self, litellm: Any, version: str) -> None:
        self._litellm = litellm
        self._version = version
        self._own = frozenset(importlib.import_module("litellm.types.utils").all_litellm_params)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Translate one call."""
        from aiohttp import web

        head, _, body = (await request.content.read()).partition(b"\n")
        asked = loads(head)
        os.environ.update(asked["environment"])
        response = web.StreamResponse()
        await response.prepare(request)
        async for part in self._answer(asked, loads(body)):
            await response.write(part)
        return response

    async def _answer(self, asked: Mapping[str, Any], body: dict[str, Any]) -> AsyncIterator[bytes]:
        calls: list[_litellm_wire.Call] = []
        _litellm_wire.calls.set(calls)
        dropped = _litellm_calls.own_settings(self._own, body)
        for name in dropped:
            del body[name]
        facts: dict[str, Any] = {"translated_by": f"litellm {self._version}"}
        facts |= {"stripped": dropped} if dropped else {}
        parts = self._parts(asked, body, calls, facts)
        broken = None
        try:
            begun = [await anext(parts)]
            # Some streams begin before the provider is asked, whose status is the answer's, or before it has answered.
            while not calls or calls[-1].status is None or (asked["streamed"] and no_stream(calls[-1]) == ""):
                begun.append(await anext(parts))
            _check_begun(calls[-1], streamed=asked["streamed"])
            yield frame(NOTE, _note(200, calls, facts))
            yield frame(DATA, b"".join(begun))
        except Exception as error:
            status, raw, unreachable = failure(asked, calls, error)
            unsent = unreachable is not None and not calls[-1].sent
            yield frame(NOTE, {**_note(status, calls, facts), "unreachable": unreachable, "unsent": unsent})
            yield frame(DATA, raw)
        else:
            try:
                async for part in parts:
                    yield frame(DATA, part)
            except Exception as error:
                broken = f"{type(error).__name__}: {error}"[:1000]
        yield frame(NOTE, {"metadata": seen(calls, request_too=False), "broken": broken})

    async def _parts(
        self, asked: Mapping[str, Any], body: dict[str, Any], calls: list[_litellm_wire.Call], facts: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        """Yield the answer as bytes of the agent's format."""
        dialect, streamed = asked["dialect"], asked["streamed"]
        try:
            answer = await self._called(asked, body)
        except Exception as error:
            hints = [] if calls else _litellm_calls.refused_hints(error, body)
            if not hints:
                raise
            facts["hints_left_out"] = hints
            answer = await self._called(asked, {name: value for name, value in body.items() if name not in hints})

        def heard() -> bytes:
            return calls[-1].answer if calls else b""

        if streamed:
            async for part in _litellm_calls.events(dialect, answer, heard):
                yield part
        else:
            yield dumps(_litellm_calls.true_usage(_litellm_calls.plain(answer), heard))

    async def _called(self, asked: Mapping[str, Any], body: Mapping[str, Any]) -> Any:
        """Return what LiteLLM answers to a request in its own types."""
        if asked["model"].startswith(_OF_GOOGLE):
            body = in_order_of_calls(asked["dialect"], body)
        call, arguments = _litellm_calls.entry(self._litellm, asked["dialect"], body, streamed=asked["streamed"])
        headers = {"extra_headers": asked["headers"]} if asked["headers"] else {}
        return await call(
            **arguments,
            **asked["parameters"],
            **headers,
            model=asked["model"],
            timeout=asked["timeout"] or _NO_LIMIT,
            max_retries=0,
            num_retries=0,
        )


def _check_begun(call: _litellm_wire.Call, *, streamed: bool) -> None:
    """Raise RuntimeError where an answer has begun that is none: the provider refused, or sent no stream when asked."""
    if (call.status or 0) >= 400:
        raise RuntimeError(f"the provider refused with {call.status}")
    # LiteLLM makes an empty answer of it, and says that it is whole.
    if streamed and (kind := no_stream(call)) is not None:
        raise RuntimeError(f"it is {kind}, and a stream was asked for")


def _note(status: int, calls: list[_litellm_wire.Call], facts: Mapping[str, Any]) -> dict[str, Any]:
    told = {**facts, **seen(calls, request_too=True)}
    return {"status": status, "headers": headers_of(calls, failed=status >= 400), "metadata": told}


async def _serve(directory: Path, leases: Leases, translator: Translator) -> None:
    from aiohttp import web

    server = web.Server(translator.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.UnixSite(runner, str(directory / CALLS), backlog=256).start()
    leases.ready()
    await asyncio.Event().wait()


def main() -> None:
    """Serve in the directory that the command line names, with the first lease as standard input."""
    if os.fork():
        os._exit(0)
    directory = Path(sys.argv[1])
    leases = Leases(directory, socket.socket(fileno=os.dup(0)))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=leases.watch, daemon=True).start()
    _litellm_calls.leave_out_proxy()
    litellm = importlib.import_module("litellm")
    _litellm_calls.settle(litellm)
    _litellm_wire.watch()
    asyncio.run(_serve(directory, leases, Translator(litellm, metadata.version("litellm"))))
