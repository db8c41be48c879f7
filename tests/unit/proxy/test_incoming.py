"""What comes encoded is read or refused, what is no HTTP is refused, and all of it is recorded."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy._incoming import UnreadableError, decoded
from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from tests.unit.proxy.door import asking, door, run

if TYPE_CHECKING:
    from pathlib import Path

BODY = json.dumps(asking("x")).encode()
READ = {
    "gzip": gzip.compress(BODY),
    "x-gzip": gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]),
    "deflate": zlib.compress(BODY),
    "identity": BODY,
}


@pytest.mark.parametrize("encoding", [*READ, "bare deflate"])
def test_an_encoded_request_goes_upstream_as_it_is_meant(tmp_path: Path, encoding: str) -> None:
    raw = READ.get(encoding) or zlib.compress(BODY)[2:-4]

    async def work() -> None:
        upstream = ScriptedUpstream([ScriptTurn(text="hello")])
        async with door(tmp_path, upstream) as agent:
            headers = {"Authorization": f"Bearer {agent.token}", "Content-Encoding": encoding.rpartition(" ")[2]}
            assert (await agent.post(raw, headers=headers)).status == 200
            (record,) = agent.records()
        assert record["request"]["body"] == asking("x")
        assert upstream.requests[0].body == BODY
        assert "content-encoding" not in {name.lower() for name in upstream.requests[0].headers}

    run(work())


@pytest.mark.parametrize(
    ("encoding", "raw", "status", "says"),
    [
        ("zstd", b"(\xb5/\xfd" + BODY, 415, "is encoded as 'zstd', which is not read here"),
        ("gzip, br", gzip.compress(BODY), 415, "is encoded as 'gzip, br'"),
        ("gzip", BODY, 400, "is not the gzip that it says: Error -3"),
        ("gzip", gzip.compress(BODY)[:-9], 400, "it ends in its middle"),
    ],
    ids=["zstd", "two", "none", "cut"],
)
def test_one_that_cannot_be_read_is_refused_and_recorded_with_its_bytes(
    tmp_path: Path, encoding: str, raw: bytes, status: int, says: str
) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream([])
        async with door(tmp_path, upstream) as agent:
            headers = {"Authorization": f"Bearer {agent.token}", "Content-Encoding": encoding}
            answer = await agent.post(raw, headers=headers)
            (record,) = agent.records()
        assert answer.status == record["response"]["status_code"] == status
        assert says in answer.json["error"]["message"]
        assert record["request"]["body"] == raw.decode(errors="backslashreplace")
        assert upstream.requests == []

    run(work())


def test_a_body_that_grows_too_long_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([]), gateway=Gateway(longest_body=1000)) as agent:
            headers = {"Authorization": f"Bearer {agent.token}", "Content-Encoding": "gzip"}
            assert (await agent.post(gzip.compress(BODY + b" " * 9000), headers=headers)).status == 413

    run(work())
    assert decoded(gzip.compress(b"x" * 1000), "gzip", 1000) == b"x" * 1000
    assert decoded(gzip.compress(b"x" * 1001), "gzip", 1000) is None
    assert decoded(gzip.compress(b"x" * 600) * 2, "gzip", 1000) is None
    with pytest.raises(UnreadableError):
        decoded(gzip.compress(b"x" * 600)[:-1], "gzip", 600)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_of_any_length_and_of_many_members_is_read_whole(encoding: str) -> None:
    noise = os.urandom(100_000)
    if encoding == "deflate":
        assert decoded(zlib.compress(noise), "deflate", 100_000) == noise
        return
    many = gzip.compress(noise) + gzip.compress(b"") * 3000 + gzip.compress(b"x")
    assert decoded(many, "gzip", 100_001) == noise + b"x"
    for junk in (b"\0", gzip.compress(b"")[:5]):
        with pytest.raises(UnreadableError):
            decoded(many + junk, "gzip", 100_001)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: many\r\n\r\n{}",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03%s\r\n\r\n",
    ],
    ids=["chunk", "two-lengths", "length", "tls"],
)
def test_what_is_no_http_is_refused_and_recorded(tmp_path: Path, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with door(tmp_path, ScriptedUpstream([])) as agent:
            reader, writer = await asyncio.open_connection("127.0.0.1", await agent.endpoint.port())
            writer.write(raw % agent.token.encode())
            answer = await reader.read()
            writer.close()
            (record,) = agent.records()
        assert b" 400 " in answer.splitlines()[0]
        said: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert said["error"]["message"].startswith("what came is no request in HTTP: ")
        assert record["error"]["type"] == "malformed"
        assert agent.token not in json.dumps(record)

    run(work())
    assert not caplog.records
