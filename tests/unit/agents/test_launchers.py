"""What the launch_cmd of each agent but OpenHands makes of its environment: files, variables, arguments, exit codes."""

from __future__ import annotations

import json
import stat
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.catalog.load import shipped

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.catalog.load import Manifest

AGENTS = ("opencode", "gemini", "claude-agent-acp", "codex-acp")
# Stands in for the agent's program, and shows what it was started with.
STUB = '#!/bin/sh\nprintf \'%s\\0\' "$@" >"$HOME/arguments"\nenv -0 >"$HOME/environment"\n'
URL = "http://127.0.0.1:8000/v1?a=\"b\"&c='d'&e=\\f{env:HOME}$(id)`id`"
KEY = "k\"'\\n$HOME{file:/etc/passwd} *;#"
MODEL = 'maker/größe "2" \\ {env:KEY}'
GIVEN = {
    "BENCHFLOW_PROVIDER_BASE_URL": URL,
    "BENCHFLOW_PROVIDER_API_KEY": KEY,
    "BENCHFLOW_PROVIDER_MODEL": MODEL,
    "BENCHFLOW_LLM_TIMEOUT": "900",
}


@dataclass(frozen=True)
class Launched:
    """What a launch left behind."""

    code: int
    stderr: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        lines = (self.home / "environment").read_text().rstrip("\0").split("\0")
        return dict(line.split("=", 1) for line in lines)

    @property
    def arguments(self) -> list[str]:
        return (self.home / "arguments").read_text().split("\0")[:-1]

    def file(self, name: str) -> Any:
        path = self.home / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        return (tomllib if path.suffix == ".toml" else json).loads(path.read_text())


def first_byte_limit(agent: str, launched: Launched) -> Any:
    """Return the milliseconds that an agent was told to wait for an answer to begin."""
    if agent == "opencode":
        return launched.file(".config/opencode/opencode.json")["provider"]["benchflow"]["options"]["headerTimeout"]
    if agent == "codex-acp":
        return launched.file(".codex/config.toml")["model_providers"]["benchflow"]["stream_idle_timeout_ms"]
    return int(launched.environment["API_TIMEOUT_MS"])


def manifest(agent: str) -> Manifest:
    found = shipped(agent)
    assert found is not None
    return found


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., Launched]:
    def run(agent: str, **env: str) -> Launched:
        directory, home = tmp_path / "agent", tmp_path / "home"
        home.mkdir()
        codex = "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
        for program in ("opencode/bin/opencode", "node/bin/node", codex):
            file = directory / program
            file.parent.mkdir(parents=True)
            file.write_text(STUB)
            file.chmod(0o755)
        path = {"PATH": "/usr/bin:/bin", "HOME": str(home), "BENCHFLOW_AGENT_DIR": str(directory)}
        script = ["sh", "-c", manifest(agent).launch_cmd]
        done = subprocess.run(script, env=path | env, cwd=home, capture_output=True, text=True, check=False)
        return Launched(done.returncode, done.stderr, home)

    return run


def test_opencode_is_told_everything_in_its_own_file(launch: Callable[..., Launched]) -> None:
    launched = launch("opencode", **GIVEN, LLM_REASONING_EFFORT="max")
    assert (launched.code, launched.stderr, launched.arguments) == (0, "", ["acp"])
    settings = launched.file(".config/opencode/opencode.json")
    provider = settings["provider"]["benchflow"]
    assert provider["options"] == {"baseURL": URL, "apiKey": KEY, "headerTimeout": 900_000, "chunkTimeout": 900_000}
    assert provider["models"] == {"policy": {"id": MODEL, "name": MODEL, "options": {"reasoningEffort": "max"}}}
    # It replaces these in the text of its file, before it reads it as JSON.
    text = (launched.home / ".config/opencode/opencode.json").read_text()
    assert "{env:" not in text
    assert "{file:" not in text


def test_gemini_is_told_all_but_its_settings_by_variables(launch: Callable[..., Launched]) -> None:
    launched = launch("gemini", **GIVEN, LLM_REASONING_EFFORT="high")
    assert (launched.code, launched.stderr) == (0, "")
    assert launched.arguments[1:] == ["--acp", "--approval-mode=yolo"]
    names = ("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "GEMINI_MODEL")
    assert [launched.environment[name] for name in names] == [URL, KEY, MODEL]
    settings = launched.file(".gemini/settings.json")
    (override,) = settings["modelConfigs"]["overrides"]
    assert override["modelConfig"] == {"generateContentConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}}
    assert settings["privacy"] == {"usageStatisticsEnabled": False}


def test_claude_is_told_all_by_variables(launch: Callable[..., Launched]) -> None:
    launched = launch("claude-agent-acp", **GIVEN, LLM_REASONING_EFFORT="xhigh")
    assert (launched.code, launched.stderr) == (0, "")
    names = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL", "CLAUDE_CODE_EFFORT_LEVEL")
    assert [launched.environment[name] for name in names] == [URL, KEY, MODEL, "xhigh"]
    limits = {value for name, value in launched.environment.items() if name.endswith("TIMEOUT_MS")}
    assert limits == {"900000"}
    assert launched.file(".claude/settings.json")["permissions"]["defaultMode"] == "bypassPermissions"


def test_codex_finds_its_model_in_its_own_file_and_the_key_in_a_variable(launch: Callable[..., Launched]) -> None:
    launched = launch("codex-acp", **GIVEN, LLM_REASONING_EFFORT="none")
    assert (launched.code, launched.stderr) == (0, "")
    settings = launched.file(".codex/config.toml")
    assert (settings["model"], settings["model_reasoning_effort"]) == (MODEL, "none")
    provider = settings["model_providers"]["benchflow"]
    assert (provider["base_url"], provider["stream_idle_timeout_ms"]) == (URL, 900_000)
    assert launched.environment[provider["env_key"]] == KEY
    assert Path(launched.environment["CODEX_PATH"]).name == "codex"


@pytest.mark.parametrize("agent", AGENTS)
def test_without_a_limit_or_an_effort_none_is_set(agent: str, launch: Callable[..., Launched]) -> None:
    few = {name: value for name, value in GIVEN.items() if name != "BENCHFLOW_LLM_TIMEOUT"}
    launched = launch(agent, **few)
    assert (launched.code, launched.stderr) == (0, "")
    said = json.dumps(launched.environment) + "".join(
        path.read_text() for path in launched.home.rglob("*") if path.suffix in (".json", ".toml")
    )
    assert not any(word in said for word in ("Effort", "effort", "EFFORT", "thinkingLevel", "TIMEOUT_MS", "timeout_ms"))


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("missing", ["BENCHFLOW_PROVIDER_API_KEY", "BENCHFLOW_PROVIDER_MODEL"])
def test_what_is_missing_is_named(agent: str, missing: str, launch: Callable[..., Launched]) -> None:
    launched = launch(agent, **{name: value for name, value in GIVEN.items() if name != missing})
    assert launched.code == 2
    assert launched.stderr.startswith(f"{agent}: ")
    assert f"{missing}\n" in launched.stderr


@pytest.mark.parametrize("agent", ["opencode", "claude-agent-acp", "codex-acp"])
@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [("115200", 115_200_000), ("0.5", 500), (".25", 250), ("62.0001", 62_001), ("99999999", 2_000_000_000)],
    ids=["whole", "half-a-second", "no-zero-before-the-point", "rounded-up", "as-long-as-a-timer-can-be"],
)
def test_a_limit_in_seconds_is_given_in_milliseconds(
    agent: str, given: str, milliseconds: int, launch: Callable[..., Launched]
) -> None:
    launched = launch(agent, **GIVEN, LLM_TIMEOUT=given)
    assert (launched.code, launched.stderr) == (0, "")
    assert first_byte_limit(agent, launched) == milliseconds


@pytest.mark.parametrize("agent", ["opencode", "claude-agent-acp", "codex-acp"])
@pytest.mark.parametrize("given", ["soon", "0", "-1", "1 2", "1e5", ".", "5s", "$(id)"])
def test_a_limit_that_is_no_number_of_seconds_ends_the_launch(
    agent: str, given: str, launch: Callable[..., Launched]
) -> None:
    launched = launch(agent, **GIVEN, LLM_TIMEOUT=given)
    assert launched.code == 2
    assert launched.stderr == f"{agent}: LLM_TIMEOUT is '{given}'; it takes a number of seconds above 0\n"


@pytest.mark.parametrize("agent", ["gemini", "claude-agent-acp", "codex-acp"])
def test_an_effort_that_an_agent_cannot_send_ends_the_launch(agent: str, launch: Callable[..., Launched]) -> None:
    launched = launch(agent, **GIVEN, LLM_REASONING_EFFORT='highest"')
    assert launched.code == 2
    assert f'{agent}: the reasoning effort is highest"; ' in launched.stderr
    for effort in manifest(agent).host.efforts:
        assert effort in launched.stderr


def test_models_before_gemini_3_are_not_asked_for_an_effort(launch: Callable[..., Launched]) -> None:
    launched = launch("gemini", **{**GIVEN, "BENCHFLOW_PROVIDER_MODEL": "gemini-2.5-pro"}, LLM_REASONING_EFFORT="low")
    assert launched.code == 2
    assert "gemini-2.5-pro takes none" in launched.stderr


@pytest.mark.parametrize("agent", ["opencode", "codex-acp"])
@pytest.mark.parametrize("name", ["BENCHFLOW_PROVIDER_BASE_URL", "BENCHFLOW_PROVIDER_MODEL"])
def test_a_line_break_in_a_value_adds_no_line_to_a_file(agent: str, name: str, launch: Callable[..., Launched]) -> None:
    launched = launch(agent, **{**GIVEN, name: "a\nb"})
    assert (launched.code, launched.stderr) == (2, f"{agent}: a value of the environment holds a control character\n")


@pytest.mark.parametrize("command", ["install_cmd", "launch_cmd"])
@pytest.mark.parametrize("agent", AGENTS)
def test_the_commands_need_no_more_than_a_plain_shell(agent: str, command: str) -> None:
    text: str = getattr(manifest(agent), command)
    assert "python" not in text
    assert not [line for line in text.splitlines() if len(line) > 120]
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
