"""No key of the host is in anything a session writes, shows or starts: invented ones are planted and searched for."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.proxy._providers import PROVIDERS, SERVER
from pytest_benchflow.records.rollout import Rollout
from tests.modelhost import Provider, Reply, providing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine

VARIABLES = sorted(
    {
        *(name for row in (*PROVIDERS.values(), SERVER) for ways in row.credentials for each in ways if each.secret
          for name in each.variables),
        "HF_TOKEN",
        "DAYTONA_API_KEY",
        "MISTRAL_API_KEY",
    }
)  # fmt: skip
# No known shape of a key, so that it is found only by those who know that it is one.
MARK = "q7canaryx"
# Of the one secret that the agent is given.
OWN = "w3ownsecretw-5a2e"
OWN_MARK = b"w3ownsecretw"
# Finds the mark in the environment and the command line of every process it can see, but not in its own.
LOOK = "grep -laz 'q[7]canaryx' /proc/*/environ /proc/*/cmdline 2>/dev/null | wc -l > /app/found; cat /app/found"
VERIFIER = """\
#!/bin/sh
if [ "$(cat /app/found)" = 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def canary(name: str) -> str:
    return f"{MARK}-{name.lower().replace('_', '-')}-4f1d"


class Echo(Provider):
    """A provider, and a forward proxy before it, that says in each answer all that it was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def reply(self, body: dict[str, Any], request: BaseHTTPRequestHandler) -> Reply:
        heard = f"{request.path} {dict(request.headers)}"
        self.heard.append(heard)
        # In every form in which a program may repeat it.
        echo = f"You sent {heard}, {json.dumps(heard)!r}, {base64.b64encode(heard.encode()).decode()}."
        headers = (("X-Echo", heard.replace("\n", " ")),)
        if len(self.heard) == 1:
            return Reply({"error": {"message": echo}}, 503, headers)
        results = any(message["role"] == "tool" for message in body["messages"])
        call = ("finish", {"message": echo}) if results else ("shell", {"command": LOOK})
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return Reply(self.completion(body, call, text=echo, usage=usage), 200, headers)


@pytest.fixture
def provider() -> Iterator[Echo]:
    with providing(Echo()) as made:
        yield made


def small_files(place: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files below a place that others add to and take away meanwhile, but for what sandboxes are made of."""
    for directory, inner, names in os.walk(place):
        inner[:] = [name for name in inner if name != "root"]
        for path in (Path(directory, name) for name in names):
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_size < 1 << 20:
                    yield path, path.read_bytes()


@dataclass
class Watched:
    """What could be seen of a session while it ran; `translators` are the environments of LiteLLM processes."""

    shown: str = ""
    commands: set[bytes] = field(default_factory=set)
    translators: set[bytes] = field(default_factory=set)
    files: dict[Path, bytes] = field(default_factory=dict)  # of what is there only while it runs

    def look(self, machine: Machine) -> None:
        for place in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (place / "cmdline").read_bytes()
                self.commands.add(command)
                if b"_litellm_worker" in command:
                    self.translators.add((place / "environ").read_bytes())
                    self.files.update(small_files(Path(command.split(b"\0")[-3].decode())))
        self.files.update(small_files(machine.temporary))


def watch(machine: Machine, *arguments: str, cwd: Path) -> Watched:
    """Run pytest and look around all the time until it has ended well."""
    run = machine.pytest(*arguments, cwd=cwd)
    seen = Watched()

    def read() -> None:
        seen.shown = run.communicate()[0]

    reading = threading.Thread(target=read)
    reading.start()
    while reading.is_alive():
        seen.look(machine)
        time.sleep(0.1)
    reading.join()
    assert run.returncode == 0, seen.shown
    return seen


@pytest.fixture
def planted(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, provider: Echo) -> Path:
    """Return the root of a task in which, and around which, there is a canary wherever a key can come from."""
    root = make_task(verifier=VERIFIER).parents[1]
    for name in VARIABLES:
        monkeypatch.setenv(name, canary(name))
    monkeypatch.setenv("OWN_SECRET", OWN)
    monkeypatch.setenv("PLACE", f"http://user:{OWN}@place.invalid/")
    for name in ("OPENAI_BASE_URL", "MISTRAL_API_BASE"):
        monkeypatch.setenv(name, "http://provider.invalid/v1")
    # What goes to the provider goes by this proxy, whose password is a key too.
    port = provider.server_address[1]
    monkeypatch.setenv("http_proxy", f"http://user:{canary('proxy')}@127.0.0.1:{port}")
    home = root / "home"
    (home / ".aws").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (home / ".netrc").write_text(f"default login user password {canary('netrc')}\n")
    (home / ".netrc").chmod(0o600)
    (home / ".aws" / "credentials").write_text(f"[default]\naws_secret_access_key = {canary('profile')}\n")
    (root / "prices.toml").write_text('[models."openai/scripted"]\ninput = 1\noutput = 1\n')
    (root / "pytest.ini").write_text("[pytest]\n")
    return root


@pytest.mark.parametrize(
    ("model", "key"),
    [("openai/scripted", "OPENAI_API_KEY"), ("mistral/scripted", "MISTRAL_API_KEY")],
    ids=["passed-on", "translated"],
)
def test_no_key_of_the_host_is_in_anything_that_is_written_shown_or_started(
    planted: Path, machine: Machine, provider: Echo, model: str, key: str
) -> None:
    seen = watch(
        machine,
        *("tasks", "-n1", "-rA", "-m", "rollout", "--benchflow-agent=baseline", f"--benchflow-model={model}"),
        *("--benchflow-agent-env=OWN_SECRET", "--benchflow-agent-env=PLACE"),
        *("--benchflow-prices=prices.toml", "--benchflow-price=mistral/scripted=1,1", "--junitxml=junit.xml"),
        *("--log-file=log.txt", "--log-file-level=DEBUG", "--basetemp=basetemp"),
        cwd=planted,
    )
    (path,) = (path.parent for path in planted.glob("jobs/*/*/result.json"))
    assert Rollout(path).result["rewards"]["reward"] == 1, "a process in the sandbox knows a key"
    assert len(provider.heard) == 3
    assert all(canary(key) in heard for heard in provider.heard), "the key that was needed was used"
    others = {name for name in (*VARIABLES, "netrc", "profile") if name != key}
    assert not [name for name in others for heard in provider.heard if canary(name) in heard]
    written = {path: path.read_bytes() for path in planted.rglob("*") if path.is_file() and "home" not in path.parts}
    expected = {"log.txt", "junit.xml", "job.json", "config.json", "llm_trajectory.jsonl", "results.jsonl"}
    assert expected <= {path.name for path in written}
    if model.startswith("mistral"):
        assert any(path.parent.name.startswith("benchflow-") and path.name == "log" for path in seen.files)
        assert seen.translators
    for place, text in (*written.items(), *seen.files.items(), ("the terminal", seen.shown.encode())):
        assert MARK.encode() not in text, place
        assert OWN_MARK not in text, place
        for shift in range(3):
            encoded = base64.b64encode(b"\0" * shift + MARK.encode()).decode()[4 if shift else 0 : -4]
            assert encoded.encode() not in text, f"{place} holds it in base64"
    assert not [line for line in seen.commands | seen.translators if MARK.encode() in line or OWN_MARK in line]
