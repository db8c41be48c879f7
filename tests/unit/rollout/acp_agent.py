"""An invented agent in one file: it speaks ACP and chat completions, and has the faults that its arguments name.

Runs inside a sandbox with the standard library alone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

FAULTS = frozenset(sys.argv[1:])
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": ["string", "null"]},
                "why": {"type": "string"},
                "risk": {"type": "string", "enum": ["low", "high"]},
            },
            "required": ["why", "command", "risk"],
        },
    },
}
cancelled = threading.Event()
waiting = threading.Event()  # for the model
permission: list[Any] = []
answered = threading.Event()


class NoAnswerError(Exception):
    """The model gave none."""


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(kind: str, **fields: Any) -> None:
    send(method="session/update", params={"sessionId": "s", "update": {"sessionUpdate": kind, **fields}})


def hang() -> None:
    time.sleep(1e6)


def post(body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(  # noqa: S310 - the gateway's own URL
        os.environ["BENCHFLOW_PROVIDER_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "stream": "streams" in FAULTS, **body}).encode(),
        {"Authorization": "Bearer " + os.environ["BENCHFLOW_PROVIDER_API_KEY"]},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - as above
        try:
            data: bytes = answer.read()
        except http.client.IncompleteRead as cut:
            data = cut.partial
        return data


def joined(raw: bytes) -> dict[str, Any]:
    """Put a stream's texts together; of the tools' calls, this agent reads none from a stream."""
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    if lines[-1:] != [b"[DONE]"]:
        if "hangs-after-a-cut" in FAULTS:
            hang()
        if "takes-a-part" not in FAULTS:
            raise NoAnswerError("the stream was cut")
        lines = [*lines[:-1], b"[DONE]"]
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return {"role": "assistant", "content": "".join(choice["delta"].get("content") or "" for choice in choices)}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the model's message, asked for up to three times."""
    tools = {} if "toolless" in FAULTS else {"tools": [TOOL]}
    for _ in range(1 if "gives-up" in FAULTS else 3):
        try:
            waiting.set()
            raw = post({"messages": messages, **tools})
            waiting.clear()
            message = joined(raw) if "streams" in FAULTS else json.loads(raw)["choices"][0]["message"]
            return dict(message)
        except urllib.error.HTTPError:
            if "hangs-after-an-error" in FAULTS:
                hang()
            if "is-patient" in FAULTS:
                time.sleep(2)
        except (OSError, NoAnswerError):
            pass
    raise NoAnswerError("no answer")


def allowed() -> bool:
    if "asks" not in FAULTS:
        return True
    options = [{"optionId": kind, "name": kind, "kind": kind} for kind in ("allow_once", "reject_once")]
    send(id="p", method="session/request_permission", params={"sessionId": "s", "toolCall": {}, "options": options})
    answered.wait()
    return "disobeys" in FAULTS or permission[0]["outcome"].get("optionId") == "allow_once"


def run(command: str) -> str:
    if not allowed():
        return "refused"
    for _ in range(2 if "runs-twice" in FAULTS else 1):
        process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True, start_new_session=True)
        while process.poll() is None and not cancelled.wait(0.01) and "sleep" in command:
            pass
        if cancelled.is_set():
            os.killpg(process.pid, 9)
        output = process.communicate()[0]
    if process.returncode and "dies-of-a-failure" in FAULTS:
        os._exit(4)
    if len(output) > 65536 and "dies-of-long-output" in FAULTS:
        os._exit(5)
    return "done" if "forgets" in FAULTS else f"{output}[exit {process.returncode}]"


def title(text: str) -> None:
    with contextlib.suppress(OSError):
        post({"messages": [{"role": "user", "content": f"A title for: {text}"}]})


def turn(prompt: int, text: str) -> None:
    """Work on a prompt until the model calls nothing more."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    try:
        while True:
            message = ask(messages)
            messages.append(message)
            calls = message.get("tool_calls") or []
            for number, call in enumerate(calls):
                skipped = number and "runs-the-first" in FAULTS
                result = "skipped" if skipped else run(json.loads(call["function"]["arguments"])["command"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not calls or cancelled.is_set():
                break
        said = str(message.get("content"))
        if "says-nothing" not in FAULTS:
            update("agent_message_chunk", content={"type": "text", "text": said[:65536] if "cuts" in FAULTS else said})
        send(id=prompt, result={"stopReason": "cancelled" if cancelled.is_set() else "end_turn"})
    except NoAnswerError as error:
        key = os.environ["BENCHFLOW_PROVIDER_API_KEY"] if "tells-its-key" in FAULTS else "a key"
        send(id=prompt, error={"code": -32000, "message": f"{error} with {key}"})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method = message.get("method")
        if method == "initialize":
            if "is-dead" in FAULTS:
                sys.exit("no licence")
            send(id=message["id"], result={"protocolVersion": 1, "agentInfo": {"name": "invented", "version": "7"}})
        elif method == "session/new":
            send(id=message["id"], result={"sessionId": "s"})
        elif method == "session/prompt":
            if len(line) > 65536 and "reads-short-lines" in FAULTS:
                hang()
            text = message["params"]["prompt"][0]["text"]
            if "titles" in FAULTS:
                threading.Thread(target=title, args=(text,), daemon=True).start()
            threading.Thread(target=turn, args=(message["id"], text), daemon=True).start()
            asked = message["id"]
        elif method == "session/cancel" and "ignores-cancel" not in FAULTS:
            cancelled.set()
            if waiting.is_set():
                send(id=asked, result={"stopReason": "end_turn" if "says-it-is-done" in FAULTS else "cancelled"})
        elif message.get("id") == "p":
            permission.append(message["result"])
            answered.set()


if __name__ == "__main__":
    main()
