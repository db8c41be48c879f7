"""Servers that speak as Amazon Bedrock and Google's Vertex AI do on the wire, with one invented answer."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

SIGNATURE = "c2lnbmF0dXJlIG9mIGEgdGhvdWdodA=="
THOUGHT = "two files, so two calls"
CALLS = (("call-1", {"command": "ls"}), ("call-2", {"command": "pwd"}))
TOKENS = {"inputTokens": 21, "outputTokens": 9, "totalTokens": 30}


@dataclass
class Cloud:
    """A running server: its URL, and the requests it got as (path, headers, body)."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    status: int = 200
    refuses_tokens: bool = False

    def body(self) -> Any:
        return self.requests[-1][2]


@asynccontextmanager
async def bedrock() -> AsyncIterator[Cloud]:
    """Serve Converse and InvokeModel, streamed as Amazon's event streams."""
    cloud = Cloud()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        cloud.requests.append((request.path, dict(request.headers), body))
        if cloud.status != 200:
            headers = {"x-amzn-errortype": "ThrottlingException", "x-amzn-requestid": "amz-err", "Retry-After": "7"}
            return web.json_response({"message": "too many requests"}, status=cloud.status, headers=headers)
        action = request.path.rpartition("/")[2]
        headers = {"x-amzn-requestid": "amz-1"}
        if action == "converse":
            return web.json_response(_converse(), headers=headers)
        if action == "invoke":
            return web.json_response(_claude(), headers=headers)
        stream = _converse_events() if action == "converse-stream" else _invoke_events()
        response = web.StreamResponse(headers=headers | {"Content-Type": "application/vnd.amazon.eventstream"})
        await response.prepare(request)
        for part in stream:
            await response.write(part)
        return response

    async with _served(handle) as url:
        cloud.url = url
        yield cloud


@asynccontextmanager
async def vertex() -> AsyncIterator[Cloud]:
    """Serve a token for a service account, and Gemini models to who shows it."""
    cloud = Cloud()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        raw = await request.read()
        if request.path == "/token" and cloud.refuses_tokens:
            told = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            return web.json_response(told, status=400)
        if request.path == "/token":
            return web.json_response({"access_token": "ya29.invented", "expires_in": 3600, "token_type": "Bearer"})
        cloud.requests.append((request.path_qs, dict(request.headers), json.loads(raw)))
        if request.headers.get("Authorization") != "Bearer ya29.invented":
            return _google_error(401, "no token", "UNAUTHENTICATED")
        if cloud.status != 200:
            return _google_error(cloud.status, "try later", "UNAVAILABLE")
        if "stream" not in request.path:
            return web.json_response(_gemini())
        return web.Response(body=b"data: " + json.dumps(_gemini()).encode() + b"\n\n", content_type="text/event-stream")

    async with _served(handle) as url:
        cloud.url = url
        yield cloud


@asynccontextmanager
async def _served(handle: Callable[[web.BaseRequest], Any]) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site.port}"
    finally:
        await runner.cleanup()


def service_account(path: Path, url: str) -> Path:
    """Write the file of a service account whose tokens come from `url`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "project_id": "invented-project",
        "private_key_id": "invented-key-id",
        "private_key": key.decode(),
        "client_email": "tests@invented-project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"{url}/token",
    }
    path.write_text(json.dumps(account))
    return path


def _converse() -> dict[str, Any]:
    thought = {"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": SIGNATURE}}}
    calls = [{"toolUse": {"toolUseId": name, "name": "shell", "input": asked}} for name, asked in CALLS]
    return {
        "output": {"message": {"role": "assistant", "content": [thought, {"text": "looking"}, *calls]}},
        "stopReason": "tool_use",
        "usage": TOKENS,
        "metrics": {"latencyMs": 3},
    }


def _converse_events() -> Iterable[bytes]:
    yield _event("messageStart", {"role": "assistant"})
    yield _event("contentBlockDelta", {"delta": {"reasoningContent": {"text": THOUGHT}}, "contentBlockIndex": 0})
    yield _event("contentBlockDelta", {"delta": {"reasoningContent": {"signature": SIGNATURE}}, "contentBlockIndex": 0})
    yield _event("contentBlockStop", {"contentBlockIndex": 0})
    yield _event("contentBlockDelta", {"delta": {"text": "looking"}, "contentBlockIndex": 1})
    yield _event("contentBlockStop", {"contentBlockIndex": 1})
    for index, (name, asked) in enumerate(CALLS, 2):
        start = {"toolUse": {"toolUseId": name, "name": "shell"}}
        yield _event("contentBlockStart", {"start": start, "contentBlockIndex": index})
        delta = {"toolUse": {"input": json.dumps(asked)}}
        yield _event("contentBlockDelta", {"delta": delta, "contentBlockIndex": index})
        yield _event("contentBlockStop", {"contentBlockIndex": index})
    yield _event("messageStop", {"stopReason": "tool_use"})
    yield _event("metadata", {"usage": TOKENS, "metrics": {"latencyMs": 3}})


def _claude() -> dict[str, Any]:
    return {
        "id": "msg_bdrk_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-invented",
        "content": [
            {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE},
            {"type": "text", "text": "looking"},
            *({"type": "tool_use", "id": name, "name": "shell", "input": asked} for name, asked in CALLS),
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 21, "output_tokens": 9},
    }


def _invoke_events() -> Iterable[bytes]:
    from pytest_benchflow.dialects.messages import dialect

    for raw in dialect.disassemble(_claude(), {"stream": True}, "/v1/messages"):
        for line in raw.splitlines():
            if line.startswith(b"data:"):
                yield _event("chunk", {"bytes": base64.b64encode(line[5:].strip()).decode()})


def _gemini() -> dict[str, Any]:
    calls = [{"functionCall": {"name": "shell", "args": asked}, "thoughtSignature": SIGNATURE} for _, asked in CALLS]
    return {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "looking"}, *calls]}, "finishReason": "STOP", "index": 0}
        ],
        "usageMetadata": {"promptTokenCount": 21, "candidatesTokenCount": 9, "totalTokenCount": 30},
        "modelVersion": "gemini-invented",
        "responseId": "vertex-1",
    }


def _google_error(status: int, message: str, name: str) -> web.Response:
    return web.json_response({"error": {"code": status, "message": message, "status": name}}, status=status)


def _event(kind: str, payload: Any) -> bytes:
    """Return one message of an Amazon event stream."""
    names = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    raw = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(raw), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + raw
    return message + struct.pack(">I", binascii.crc32(message))
