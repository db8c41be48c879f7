"""A small tool-calling agent in one file: it speaks the Agent Client Protocol on stdio and calls an OpenAI-style API.

It runs inside a sandbox with nothing but Python 3.8 or newer, so it imports the standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, Callable, Iterator  # noqa: UP035 - collections.abc has no generic classes in Python 3.8

MAX_TURNS = 200
TRIES = 4
SHELL_SEC = 120.0
OUTPUT_CHARS = 20000
OUTPUT_BYTES = 64 * 1024 * 1024  # a command that prints more than this is ended

SYSTEM = """You are a careful software engineer. You work alone in a sandbox, through tools, until the task is done.
Working directory: {cwd}
Look before you change something, check your work by running it, and call finish when the task is done."""


def _tool(name: str, description: str, required: list[str], **properties: tuple[str, str]) -> dict[str, Any]:
    fields = {key: {"type": kind, "description": about} for key, (kind, about) in properties.items()}
    parameters = {"type": "object", "properties": fields, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool(
        "shell",
        "Run a shell command and return its output. Each call starts in the working directory.",
        ["command"],
        command=("string", "The command line."),
        timeout=("number", "Seconds until it is killed (default 120)."),
    ),
    _tool(
        "edit",
        "Write a whole file (content), or replace the only occurrence of old by new in it.",
        ["path"],
        path=("string", "The file; relative to the working directory."),
        content=("string", "The whole new content of the file."),
        old=("string", "Text that occurs exactly once in the file."),
        new=("string", "What to put in its place."),
    ),
    _tool(
        "finish",
        "End the work; call it when the task is done or cannot be done.",
        ["message"],
        message=("string", "What was done, in a sentence or two."),
    ),
]
KINDS = {"shell": "execute", "edit": "edit"}


class ToolError(Exception):
    """A tool could not do what it was asked; the text goes to the model."""


class ModelError(Exception):
    """The model gave no usable answer, however often it was asked."""


class Retry(Exception):  # noqa: N818 - it is a request to try again
    """This try failed in a way that another may not."""


class Cancelled(Exception):  # noqa: N818 - the protocol's own word
    """The client asked to stop."""


class Workplace:
    """The working directory and the tools that act on it."""

    def __init__(self, cwd: str, stop: threading.Event) -> None:
        self.cwd = cwd
        self._stop = stop

    def run(self, name: str, arguments: str) -> str:
        """Run a tool by name with its JSON arguments. Raises: ToolError."""
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            raise ToolError(f"the arguments are not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ToolError("the arguments must be a JSON object")
        if name == "shell":
            return self._shell(given)
        if name == "edit":
            return self._edit(given)
        if name == "finish":
            return "The work is ended."
        raise ToolError(f"there is no tool named {name!r}; there are: shell, edit, finish")

    def _shell(self, given: dict[str, Any]) -> str:
        command, limit = given.get("command"), given.get("timeout", SHELL_SEC)
        if not isinstance(command, str) or not command.strip():
            raise ToolError("shell takes command, a string")
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise ToolError("timeout is a number of seconds above 0")
        # A file, not a pipe: a daemon that keeps it open must not keep the agent waiting.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [shutil.which("bash") or "/bin/sh", "-c", command],
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ended = self._wait(process, output.fileno(), limit)
            return _shown(output.fileno()) + f"\n[{ended}]"

    def _wait(self, process: subprocess.Popen[bytes], output: int, limit: float) -> str:
        deadline = time.monotonic() + limit
        pause = 0.005
        while process.poll() is None:
            reason = None
            if time.monotonic() >= deadline:
                reason = f"killed: still running after {limit:g} s"
            elif os.fstat(output).st_size > OUTPUT_BYTES:
                reason = f"killed: it printed more than {OUTPUT_BYTES} bytes"
            if reason or self._stop.is_set():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if reason is None:
                    raise Cancelled
                return reason
            time.sleep(pause)
            pause = min(pause * 2, 0.1)
        return f"exit code {process.returncode}"

    def _edit(self, given: dict[str, Any]) -> str:
        name, content, old, new = (given.get(key) for key in ("path", "content", "old", "new"))
        if not isinstance(name, str) or not name:
            raise ToolError("edit takes path, a string")
        path = Path(self.cwd, name)
        try:
            if isinstance(content, str) and old is None and new is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode("utf-8", "replace"))
                return f"Wrote {path}."
            if content is not None or not isinstance(old, str) or not old or not isinstance(new, str):
                raise ToolError("edit takes either content, or old (not empty) and new; all are strings")
            return self._replace(path, old.encode("utf-8", "replace"), new.encode("utf-8", "replace"))
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None

    @staticmethod
    def _replace(path: Path, old: bytes, new: bytes) -> str:
        before = path.read_bytes()
        count = before.count(old)
        if count != 1:
            raise ToolError(f"{path}: old occurs {count} times; it must occur exactly once")
        path.write_bytes(before.replace(old, new))
        return f"Changed {path}."


def _shown(file: int) -> str:
    """Return an output file's text, its middle left out when it is long."""
    size = os.fstat(file).st_size
    half = OUTPUT_CHARS // 2
    if size <= OUTPUT_CHARS:
        return os.pread(file, size, 0).decode("utf-8", "replace")
    head, tail = os.pread(file, half, 0), os.pread(file, half, size - half)
    left_out = f"\n[{size - 2 * half} bytes left out]\n"
    return head.decode("utf-8", "replace") + left_out + tail.decode("utf-8", "replace")


class Model:
    """An OpenAI-style chat completions API, streaming or not."""

    def __init__(self, stop: threading.Event) -> None:
        base = os.environ.get("BENCHFLOW_PROVIDER_BASE_URL", "")
        self._url = urllib.parse.urlsplit(base.rstrip("/") + "/chat/completions")
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ModelError(f"BENCHFLOW_PROVIDER_BASE_URL is {base!r}; it takes an http or https URL")
        self._key = os.environ.get("BENCHFLOW_PROVIDER_API_KEY", "")
        self._name = os.environ.get("BENCHFLOW_PROVIDER_MODEL", "")
        self._effort = os.environ.get("BENCHFLOW_REASONING_EFFORT")
        self._stream = os.environ.get("BENCHFLOW_STREAM") == "1"
        limit = os.environ.get("BENCHFLOW_LLM_TIMEOUT")
        self._timeout = float(limit) if limit else None
        self._stop = stop
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the first choice of the answer: message and finish_reason. Raises: ModelError, Cancelled."""
        body: dict[str, Any] = {"model": self._name, "messages": messages, "tools": TOOLS}
        if self._effort:
            body["reasoning_effort"] = self._effort
        if self._stream:
            body.update(stream=True, stream_options={"include_usage": True})
        payload = json.dumps(body).encode()
        for attempt in range(TRIES):
            if attempt and self._stop.wait(0.5 * 2**attempt):
                raise Cancelled
            try:
                return self._try(payload)
            except (OSError, http.client.HTTPException, Retry) as error:
                if self._stop.is_set():
                    raise Cancelled from None
                problem = f"{type(error).__name__}: {error}"
                log(f"try {attempt + 1} of {TRIES}: {problem}")
        raise ModelError(f"no answer from the model after {TRIES} tries; the last: {problem}")

    def abort(self) -> None:
        """Break off the call under way; the thread that waits for it sees an error."""
        socket = self._connection.sock if self._connection else None
        if socket is not None:
            try:
                socket.shutdown(2)
            except OSError as error:
                log(f"the call was over already: {error}")

    def _try(self, payload: bytes) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        self._connection = connection = kind(str(self._url.hostname), self._url.port, timeout=self._timeout)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
            path = self._url.path + (f"?{self._url.query}" if self._url.query else "")
            connection.request("POST", path, payload, headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read().decode("utf-8", "replace")[:2000]
                if response.status >= 500 or response.status in (408, 429):
                    raise Retry(f"HTTP {response.status}: {text}")
                raise ModelError(f"the model answered HTTP {response.status}: {text}")
            if "text/event-stream" in response.headers.get("Content-Type", ""):
                return _joined(_events(response))
            return _first_choice(response.read())
        finally:
            connection.close()
            self._connection = None


def _first_choice(raw: bytes) -> dict[str, Any]:
    try:
        choice = json.loads(raw)["choices"][0]
        if isinstance(choice["message"], dict):
            return dict(choice)
    except (ValueError, LookupError, TypeError):
        pass
    raise Retry(f"the answer is no chat completion: {raw[:500]!r}")


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise Retry(f"an event of the stream is not JSON: {data[:200]!r}") from None
        if isinstance(event, dict):
            yield event


def _joined(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream's deltas together to one choice. Raises: Retry when it was cut."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for event in events:
        if event.get("error"):
            raise Retry(f"the stream broke off: {event['error']!r:.500}")
        for choice in event.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {}
            for key in ("content", "refusal", "reasoning_content"):
                if delta.get(key):
                    message[key] = (message.get(key) or "") + delta[key]
            for part in delta.get("tool_calls") or []:
                _add_call(calls, part)
    if finish is None:
        raise Retry("the stream ended without a finish_reason")
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"message": message, "finish_reason": finish}


def _add_call(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(part.get("index", len(calls)), empty)
    call["id"] = part.get("id") or call["id"]
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


def skills_text(directory: str) -> str:
    """Return the part of the system prompt that lists the skills in a directory; empty when there are none."""
    items = []
    for file in sorted(Path(directory).glob("*/SKILL.md")):
        front = _front_matter(file.read_text("utf-8", "replace"))
        name, about = front.get("name") or file.parent.name, front.get("description", "")
        place = f"    <name>{name}</name>\n    <description>{about}</description>\n    <location>{file}</location>"
        items.append(f"  <skill>\n{place}\n  </skill>")
    if not items:
        return ""
    lines = "\n".join(items)
    return (
        "\n\nSkills are written instructions for some kinds of task. Read a skill's file with the shell tool before "
        f"you start on something that it covers.\n<available_skills>\n{lines}\n</available_skills>"
    )


def _front_matter(text: str) -> dict[str, str]:
    """Read the top-level strings of a SKILL.md's YAML front matter, folded lines included."""
    lines = text.splitlines()
    found: dict[str, str] = {}
    key = ""
    if not lines or lines[0].strip() != "---":
        return found
    for line in lines[1:]:
        if line.strip() == "---":
            break
        if line[:1] in (" ", "\t"):
            if key:
                found[key] = (found[key] + " " + line.strip()).strip()
            continue
        key, colon, value = line.partition(":")
        value = value.strip()
        if not colon or key.startswith("#"):
            key = ""
            continue
        if value[:1] in ("'", '"') and value[-1:] == value[:1]:
            value = value[1:-1]
        found[key] = "" if value in (">", "|", ">-", "|-") else value
    return found


def system_prompt(cwd: str) -> str:
    """Return the system prompt; it holds no time or id, so that recorded answers fit."""
    return SYSTEM.format(cwd=cwd) + skills_text(os.environ.get("BENCHFLOW_SKILLS_DIR") or "/nonexistent")


def work(prompt: str, place: Workplace, model: Model, update: Callable[..., None], stop: threading.Event) -> str:
    """Work on a prompt until the model finishes; return the protocol's stop reason. Raises: ModelError, Cancelled."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system_prompt(place.cwd)},
        {"role": "user", "content": prompt},
    ]
    for _turn in range(MAX_TURNS):
        choice = model.ask(messages)
        message, calls = choice["message"], choice["message"].get("tool_calls") or []
        if message.get("reasoning_content"):
            update("agent_thought_chunk", content={"type": "text", "text": message["reasoning_content"]})
        if message.get("content"):
            update("agent_message_chunk", content={"type": "text", "text": message["content"]})
        if message.get("refusal") or choice.get("finish_reason") == "content_filter":
            return "refusal"
        if not calls:
            return "max_tokens" if choice.get("finish_reason") == "length" else "end_turn"
        messages.append({"role": "assistant", "content": message.get("content"), "tool_calls": calls})
        for call in calls:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": use(call, place, update)})
            if stop.is_set():
                raise Cancelled
        if any(call["function"]["name"] == "finish" for call in calls):
            return "end_turn"
    return "max_turn_requests"


def use(call: dict[str, Any], place: Workplace, update: Callable[..., None]) -> str:
    """Run one tool call, telling the client before and after, and return the text for the model."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    title = f"{name} {arguments}"
    update(
        "tool_call",
        toolCallId=call["id"],
        title=title if len(title) <= 200 else title[:199] + "…",
        kind=KINDS.get(name, "other"),
        status="in_progress",
        content=[],
        rawInput={"tool": name, "arguments": arguments},
    )
    status = "completed"
    try:
        text = place.run(name, arguments)
    except ToolError as error:
        status, text = "failed", f"Error: {error}"
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    update("tool_call_update", toolCallId=call["id"], status=status, content=content)
    return text


class Server:
    """The agent's side of the protocol: one session, one prompt at a time."""

    def __init__(self) -> None:
        self._out = sys.stdout.buffer
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._cwd = str(Path.cwd())
        self._model: Model | None = None

    def serve(self) -> None:
        """Answer requests until stdin ends."""
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError as error:
                log(f"a line is not JSON: {error}")
                continue
            if isinstance(message, dict) and isinstance(message.get("method"), str):
                self._handle(message, message.get("params") or {})

    def _handle(self, message: dict[str, Any], params: dict[str, Any]) -> None:
        method, number = message["method"], message.get("id")
        if method == "initialize":
            about = {"name": "baseline", "title": "Baseline", "version": "1"}
            able = {"loadSession": False, "promptCapabilities": {}}
            self._reply(number, {"protocolVersion": 1, "agentCapabilities": able, "agentInfo": about})
        elif method == "session/new":
            self._cwd = str(params.get("cwd") or self._cwd)
            self._reply(number, {"sessionId": "main"})
        elif method == "session/prompt":
            self._stop.clear()
            threading.Thread(target=self._prompt, args=(number, params), daemon=True).start()
        elif method == "session/cancel":
            self._stop.set()
            if self._model is not None:
                self._model.abort()
        elif number is not None:
            self._fail(number, -32601, f"there is no method {method}")

    def _prompt(self, number: Any, params: dict[str, Any]) -> None:
        parts = [part.get("text", "") for part in params.get("prompt", []) if part.get("type") == "text"]
        try:
            self._model = Model(self._stop)
            place = Workplace(self._cwd, self._stop)
            reason = work("\n".join(parts), place, self._model, self._update, self._stop)
        except Cancelled:
            reason = "cancelled"
        except ModelError as error:
            self._fail(number, -32000, str(error))
            return
        except Exception as error:
            self._fail(number, -32603, f"{type(error).__name__}: {error}")
            return
        self._reply(number, {"stopReason": reason})

    def _update(self, what: str, **fields: Any) -> None:
        update = {"sessionUpdate": what, **fields}
        self._send({"method": "session/update", "params": {"sessionId": "main", "update": update}})

    def _reply(self, number: Any, result: dict[str, Any]) -> None:
        self._send({"id": number, "result": result})

    def _fail(self, number: Any, code: int, text: str) -> None:
        self._send({"id": number, "error": {"code": code, "message": text}})

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()


def log(text: str) -> None:
    """Write a line to stderr, which the client keeps."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    Server().serve()
