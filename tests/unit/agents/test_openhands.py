"""OpenHands' launch_cmd turns an environment into exactly the settings it says, or stops with a sentence."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents._mcp import environment
from pytest_benchflow.catalog.load import Manifest, shipped
from pytest_benchflow.tasks.task import McpServer

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = ".openhands/agent_settings.json"
TYPED = ("none", "low", "medium", "high", "xhigh")


def manifest() -> Manifest:
    found = shipped("openhands")
    assert found is not None
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Make an agent directory whose CLI only tells how it was called."""
    programs = tmp_path / "agent/venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "openhands").write_text('#!/bin/sh\necho "$@"\nenv\ncat\n')
    (programs / "openhands").chmod(0o755)
    return tmp_path


def launch(home: Path, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    base = {"PATH": "/usr/bin:/bin", "HOME": str(home), "BENCHFLOW_AGENT_DIR": str(home / "agent")}
    base |= {"LLM_API_KEY": "key", "BENCHFLOW_PROVIDER_MODEL": "m"}
    done = subprocess.run(
        [shutil.which("dash") or "sh", "-c", manifest().launch_cmd],
        env={name: value for name, value in (base | env).items() if value},
        input="the client speaks",
        capture_output=True,
        text=True,
        check=False,
    )
    file = home / SETTINGS
    return done, json.loads(file.read_text()) if file.exists() else {}


def llm(home: Path, **env: str) -> dict[str, Any]:
    done, settings = launch(home, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(settings["llm"])


def test_the_cli_starts_with_its_own_stdin_and_a_private_tmux(home: Path) -> None:
    done, settings = launch(home, LLM_BASE_URL="http://h:1/v1?a=\"b\"&c='d' $(e)", LLM_TIMEOUT="115200")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("acp --always-approve\n")
    assert done.stdout.endswith("the client speaks")
    assert "TMUX_TMPDIR=/tmp/" in done.stdout
    assert "LITELLM_LOCAL_MODEL_COST_MAP=True" in done.stdout
    assert settings == {
        "kind": "Agent",
        "llm": {
            "usage_id": "agent",
            "model": "openai/m",
            "api_key": "key",
            "base_url": "http://h:1/v1?a=\"b\"&c='d' $(e)",
            "timeout": 115200,
        },
    }


def test_the_settings_and_their_copy_are_nobody_elses_to_read(home: Path) -> None:
    (home / ".openhands").mkdir(mode=0o755)
    for name in (SETTINGS, SETTINGS + ".launched"):
        (home / name).write_text("of an earlier launch")
        (home / name).chmod(0o644)
    launch(home)
    assert (home / SETTINGS).read_text() == (home / f"{SETTINGS}.launched").read_text()
    assert [(home / name).stat().st_mode & 0o777 for name in (SETTINGS, SETTINGS + ".launched")] == [0o600, 0o600]


@pytest.mark.parametrize("effort", TYPED)
def test_an_effort_the_settings_know_is_typed(effort: str, home: Path) -> None:
    found = llm(home, BENCHFLOW_REASONING_EFFORT=effort)
    assert found["reasoning_effort"] == effort
    assert "litellm_extra_body" not in found


@pytest.mark.parametrize(
    ("effort", "extra"),
    [
        pytest.param("max", {"reasoning": {"effort": "max"}}, id="max"),
        pytest.param(" MAX ", {"reasoning": {"effort": "max"}}, id="max-in-capitals"),
        pytest.param("minimal", {"reasoning_effort": "minimal"}, id="minimal"),
        pytest.param("ultra", {"reasoning_effort": "ultra"}, id="of-some-provider"),
    ],
)
def test_an_effort_only_the_provider_knows_is_contradicted_by_nothing(
    effort: str, extra: dict[str, Any], home: Path
) -> None:
    found = llm(home, LLM_REASONING_EFFORT=effort)
    assert found["reasoning_effort"] is None
    assert found["litellm_extra_body"] == extra


def test_the_users_own_variables_win_over_what_every_agent_gets(home: Path) -> None:
    theirs = {"LLM_TIMEOUT": "7", "LLM_REASONING_EFFORT": "low", "LLM_BASE_URL": "http://theirs/v1"}
    ours = {"LLM_TIMEOUT": "900", "REASONING_EFFORT": "max", "PROVIDER_BASE_URL": "http://ours/v1"}
    found = llm(home, **theirs, **{f"BENCHFLOW_{name}": value for name, value in ours.items()})
    assert (found["timeout"], found["reasoning_effort"], found["base_url"]) == (7, "low", "http://theirs/v1")


@pytest.mark.parametrize(("given", "written"), [("1800", 1800), ("61.5", 62), ("0.2", 1), ("1e3", 1000)])
def test_the_timeout_is_the_agents_unless_one_is_given(given: str, written: int, home: Path) -> None:
    assert llm(home, BENCHFLOW_LLM_TIMEOUT=given)["timeout"] == written
    assert llm(home, BENCHFLOW_LLM_TIMEOUT="5", LLM_TIMEOUT=given)["timeout"] == written


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"LLM_TIMEOUT": "soon"}, "LLM_TIMEOUT is 'soon'; it takes a number of seconds above 0"),
        ({"LLM_TIMEOUT": "300s"}, "LLM_TIMEOUT is '300s'"),
        ({"LLM_TIMEOUT": "0"}, "LLM_TIMEOUT is '0'"),
        ({"LLM_TIMEOUT": "-1"}, "LLM_TIMEOUT is '-1'"),
        ({"LLM_TIMEOUT": "inf"}, "LLM_TIMEOUT is 'inf'"),
        ({"LLM_TIMEOUT": "nan"}, "LLM_TIMEOUT is 'nan'"),
        ({"LLM_API_KEY": ""}, "there is no API key"),
        ({"BENCHFLOW_PROVIDER_MODEL": ""}, "no model is named"),
        ({"OPENHANDS_SUBAGENTS": "maybe"}, "OPENHANDS_SUBAGENTS is 'maybe'; it takes on or off"),
    ],
    ids=["text", "unit", "zero", "negative", "endless", "no-number", "no-key", "no-model", "sub-agents"],
)
def test_what_cannot_be_written_stops_the_launch_with_a_sentence(env: dict[str, str], says: str, home: Path) -> None:
    done, settings = launch(home, **env)
    assert (done.returncode, done.stdout, settings) == (2, "", {})
    assert f"openhands: {says}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_the_user_names_is_taken_as_it_is(home: Path) -> None:
    found = llm(home, LLM_MODEL="azure/deployed", LLM_API_VERSION="2025-04-01")
    assert (found["model"], found["api_version"]) == ("azure/deployed", "2025-04-01")


def test_sub_agents_are_there_unless_they_are_switched_off(home: Path) -> None:
    assert "filter_tools_regex" not in launch(home, OPENHANDS_SUBAGENTS="on")[1]
    tools = re.compile(launch(home, OPENHANDS_SUBAGENTS="off")[1]["filter_tools_regex"])
    offered = ("terminal", "task", "task_tracker", "delegate", "finish")
    assert [name for name in offered if tools.match(name)] == ["terminal", "task_tracker", "finish"]


def test_tool_servers_are_in_its_own_file_for_them(home: Path) -> None:
    launch(home)
    assert not (home / ".openhands/mcp.json").exists()
    servers = [McpServer("clock", "stdio", command="clock"), McpServer("book", "http", url="http://localhost/mcp")]
    launch(home, **environment(servers))
    assert json.loads((home / ".openhands/mcp.json").read_text())["mcpServers"] == {
        "clock": {"command": "clock", "args": [], "transport": "stdio"},
        "book": {"url": "http://localhost/mcp", "headers": {}, "transport": "http"},
    }
    assert (home / ".openhands/mcp.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", ["install_cmd", "launch_cmd"])
def test_shellcheck_finds_nothing_in_its_commands(command: str) -> None:
    checker = ["shellcheck", "--shell=sh", "-"]
    done = subprocess.run(checker, input=getattr(manifest(), command), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def install(home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": f"{home}/bin:/usr/bin:/bin", "HOME": str(home), "BENCHFLOW_AGENT_DIR": str(home / "agent")}
    script = ["dash", "-c", manifest().install_cmd]
    return subprocess.run(script, env=base | env, capture_output=True, text=True, check=False)


def test_a_version_that_is_none_is_not_installed(home: Path) -> None:
    done = install(home, BENCHFLOW_AGENT_VERSION="1.17.0")
    assert done.returncode == 2
    assert "openhands: there is no version 1.17.0; it comes in 1.16.0 and 1.28.1" in done.stderr


def test_the_git_pair_says_that_it_is_untested_where_its_repository_cannot_be_fetched(home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin/git").write_text("#!/bin/sh\necho 'fatal: unable to access' >&2\nexit 128\n")
    (home / "bin/git").chmod(0o755)
    done = install(home, BENCHFLOW_AGENT_VERSION="1.28.1")
    assert done.returncode == 69
    assert "openhands 1.28.1 is untested here: its CLI is a revision of https://github.com/" in done.stderr


def test_every_version_is_one_that_install_cmd_knows() -> None:
    found = manifest()
    versions = re.findall(r"^  (\d[\d.]*)\) sdk=", found.install_cmd, re.MULTILINE)
    assert versions == [found.host.version, *found.host.versions]
