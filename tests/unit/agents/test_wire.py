from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_benchflow.agents._wire import LineSplitter, Wire, embedded_message, parse_message

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_lines_are_cut_at_newlines_wherever_the_chunks_end(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + [splitter.rest()]
    assert b"".join(lines) == b"".join(chunks)
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines[:-1])
    assert b"\n" not in lines[-1]


def test_a_long_line_is_kept_whole_when_it_may_be_a_message_and_comes_in_words_when_not() -> None:
    whole = LineSplitter()
    assert [line for _ in range(30) for line in whole.feed(b'{"a": "b b' * 10_000)] == []
    pieces = [line for _ in range(30) for line in LineSplitter().feed(b"word " * 300_000)]
    assert pieces
    assert all(piece.endswith(b" ") for piece in pieces)


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":null}',
        b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"no"}}',
        b'  {"jsonrpc":"2.0","method":"session/update"}\r\n',
        b'{"jsonrpc":"2.0","method":"m","params":{"text":"\\ud83d"}}',
    ],
    ids=["answer", "error", "notification", "lone-surrogate"],
)
def test_json_rpc_is_recognised(line: bytes) -> None:
    assert parse_message(line) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"Starting the agent ...",
        b"",
        b'{"level":"info","id":3}',
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":[1],"result":1}',
        b'{"jsonrpc":"2.0","id":1,"error":"text"}',
        b'{"jsonrpc":"2.0","method":7}',
        b'{"jsonrpc":"2.0","method":"m"',
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","method":"m","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["text", "nothing", "log", "empty", "list-id", "text-error", "number-method", "cut", "brackets", "too-deep"],
)
def test_everything_else_is_not_taken_for_json_rpc(line: bytes) -> None:
    assert parse_message(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b'50 %\r{"jsonrpc":"2.0","id":1,"result":null}\n',
        b'{"a": {"b"{"id":1,"result":{"x":{}},"jsonrpc":"2.0"}\n',
        b'\xff\x00{"jsonrpc":"2.0","id":"p","method":"session/request_permission","params":{}}',
    ],
    ids=["progress", "half-json", "bytes"],
)
def test_what_somebody_waits_for_is_found_behind_other_text(line: bytes) -> None:
    assert embedded_message(line) is not None


@pytest.mark.parametrize(
    "line",
    [
        b'sent {"jsonrpc":"2.0","method":"session/update","params":{}}',
        b'{"log":{"jsonrpc":"2.0","id":1,"result":{}}}',
        b'read "jsonrpc" {"id":1}',
        b"text",
        b"{" * 1000 + b'"jsonrpc"',
    ],
    ids=["quoted-notification", "inside-a-log", "other-object", "text", "braces"],
)
def test_what_is_only_quoted_is_not_taken_for_a_message(line: bytes) -> None:
    assert embedded_message(line) is None


class Talker:
    """A process that says one line and ends."""

    def __init__(self, line: bytes) -> None:
        self._said = [line]

    async def read(self, limit: int = 65536) -> bytes:  # noqa: ARG002 - as the protocol has it
        return self._said.pop() if self._said else b""

    async def read_stderr(self, limit: int = 65536) -> bytes:  # noqa: ARG002 - as the protocol has it
        return b""

    async def write(self, data: bytes) -> None:  # noqa: ARG002 - as the protocol has it
        raise BrokenPipeError

    async def close_stdin(self) -> None:
        pass

    async def wait(self) -> int:
        return 0

    async def kill(self) -> None:
        pass


def test_a_message_that_cannot_be_recorded_ends_the_talk_with_its_reason(tmp_path: Path) -> None:
    def refuse(message: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def listen() -> tuple[dict[str, Any] | None, str | None]:
        wire = Wire(Talker(b'{"jsonrpc":"2.0","method":"session/update"}\n'), tmp_path, lambda value: value, refuse)
        message = await wire.receive()
        await wire.finish()
        return message, wire.fault

    assert asyncio.run(listen()) == (None, "could not be recorded (No space left on device)")
