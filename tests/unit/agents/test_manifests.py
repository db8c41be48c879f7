"""Manifests are read with care, and OpenHands' own turns an environment into exactly the settings it says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.catalog.load import load_manifest, shipped
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """\
contract_version = "1.0"
name = "invented"
install_cmd = "true"
launch_cmd = "exec invented acp"
skill_paths = ["skills"]
home_dirs = [".invented"]
[env_mapping]
BENCHFLOW_PROVIDER_API_KEY = "INVENTED_KEY"
[host]
version = "3"
terminal_tools = ["done"]
"""


def read(directory: Path, text: str) -> Any:
    file = directory / "invented.toml"
    file.write_text(text)
    return load_manifest(file)


def test_a_manifest_is_read_whole(tmp_path: Path) -> None:
    manifest = read(tmp_path, GOOD)
    assert (manifest.name, manifest.skill_paths, manifest.host.terminal_tools) == ("invented", ("skills",), ("done",))
    assert manifest.env_mapping == {"BENCHFLOW_PROVIDER_API_KEY": "INVENTED_KEY"}
    assert manifest.dialect == "chat"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"1.0"', '"2.0"', "contract_version is '2.0'; this package reads version 1.x"),
        ('name = "invented"', "name = 3", "name is 3; it takes a string"),
        ('name = "invented"', "", "name is missing"),
        ('["skills"]', '"skills"', "skill_paths is 'skills'; it takes a list of strings"),
        ('["skills"]', "[1]", r"skill_paths is \[1\]; it takes a list of strings"),
        ('"true"', '"true"\ninstall_timeout = true', "install_timeout is True; it takes a whole number"),
        ('"true"', '"true"\nprotocol = "mcp"', "protocol is 'mcp'; it takes acp"),
        ('"true"', '"true"\ncolour = "red"', "colour is not known; there are: acp_model_format"),
        ('version = "3"', "colour = 3", "host.colour is not known"),
        ("[host]", "[host", "not TOML"),
    ],
    ids=["major", "type", "missing", "list", "item", "bool", "protocol", "unknown", "host", "syntax"],
)
def test_a_wrong_manifest_is_refused_with_file_key_and_what_is_allowed(
    old: str, new: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=rf"invented\.toml: {says}"):
        read(tmp_path, GOOD.replace(old, new))


def test_unknown_keys_of_a_higher_minor_version_are_ignored(tmp_path: Path) -> None:
    assert read(tmp_path, 'colour = "red"\n' + GOOD.replace('"1.0"', '"1.4"')).name == "invented"


def test_an_agent_may_be_a_file_or_a_manifest() -> None:
    assert {"oracle", "nop", "baseline", "openhands"} <= set(registry.names("agents"))
    assert registry.load("agents", "openhands", "agent")("openhands").version == "1.16.0"
    with pytest.raises(UsageError, match="nothing is named 'opnhands'; there are: baseline, "):
        registry.load("agents", "opnhands", "agent")
    with pytest.raises(UsageError, match=r"nothing is named '\.\./catalog/load'"):
        registry.load("agents", "../catalog/load", "agent")


def test_an_alias_is_the_agent_it_stands_for(tmp_path: Path) -> None:
    assert registry.canonical("agents", "oh") == "openhands"
    assert registry.load("agents", "oh", "agent")("oh").name == "openhands"
    assert "oh" not in registry.names("agents")
    with pytest.raises(UsageError, match="the name 'oh' is taken"):
        registry.register("agents", "oh", None)
    with pytest.raises(UsageError, match="nothing is named 'oh'"):
        registry.load("sandboxes", "oh", "backend")


@pytest.mark.parametrize("name", ["baseline", "openhands"])
def test_shipped_commands_are_good_posix_shell(name: str) -> None:
    manifest = shipped(name)
    assert manifest is not None
    for command in (manifest.install_cmd, manifest.launch_cmd):
        done = subprocess.run(["dash", "-n"], input=command, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def openhands(tmp_path: Path) -> Path:
    """Make an agent directory whose CLI only tells how it was called."""
    programs = tmp_path / "agent/venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "openhands").write_text('#!/bin/sh\necho "$@"\nenv\ncat\n')
    (programs / "openhands").chmod(0o755)
    return tmp_path


def launch(home: Path, **env: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    manifest = shipped("openhands")
    assert manifest is not None
    base = {"PATH": "/usr/bin:/bin", "HOME": str(home), "BENCHFLOW_AGENT_DIR": str(home / "agent")}
    base |= {"LLM_API_KEY": "key", "BENCHFLOW_PROVIDER_MODEL": "m"}
    done = subprocess.run(
        [shutil.which("dash") or "sh", "-c", manifest.launch_cmd],
        env={name: value for name, value in (base | env).items() if value},
        input="the client speaks",
        capture_output=True,
        text=True,
        check=False,
    )
    file = home / ".openhands/agent_settings.json"
    return done, json.loads(file.read_text())["llm"] if file.exists() else {}


def test_the_cli_starts_with_its_own_stdin_and_a_private_tmux(openhands: Path) -> None:
    done, llm = launch(openhands, LLM_BASE_URL="http://h:1/v1?a=\"b\"&c='d' $(e)", LLM_TIMEOUT="115200")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("acp --always-approve\n")
    assert done.stdout.endswith("the client speaks")
    assert "TMUX_TMPDIR=/tmp/" in done.stdout
    assert "LITELLM_LOCAL_MODEL_COST_MAP=True" in done.stdout
    assert llm == {
        "usage_id": "agent",
        "model": "openai/m",
        "api_key": "key",
        "base_url": "http://h:1/v1?a=\"b\"&c='d' $(e)",
        "timeout": 115200,
    }
    assert (openhands / ".openhands/agent_settings.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("effort", ["none", "low", "medium", "high", "xhigh"])
def test_an_effort_the_settings_know_is_typed(effort: str, openhands: Path) -> None:
    llm = launch(openhands, BENCHFLOW_REASONING_EFFORT=effort)[1]
    assert llm["reasoning_effort"] == effort
    assert "litellm_extra_body" not in llm


@pytest.mark.parametrize(
    ("effort", "extra"),
    [("max", {"reasoning": {"effort": "max"}}), ("minimal", {"reasoning_effort": "minimal"})],
    ids=["max", "minimal"],
)
def test_an_effort_only_the_provider_knows_is_contradicted_by_nothing(
    effort: str, extra: dict[str, Any], openhands: Path
) -> None:
    llm = launch(openhands, LLM_REASONING_EFFORT=effort)[1]
    assert llm["reasoning_effort"] is None
    assert llm["litellm_extra_body"] == extra


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"LLM_TIMEOUT": "soon"}, "LLM_TIMEOUT is 'soon'; it takes a number of seconds above 0"),
        ({"LLM_TIMEOUT": "0"}, "LLM_TIMEOUT is '0'"),
        ({"LLM_TIMEOUT": "inf"}, "LLM_TIMEOUT is 'inf'"),
        ({"LLM_API_KEY": ""}, "there is no API key"),
        ({"BENCHFLOW_PROVIDER_MODEL": ""}, "no model is named"),
    ],
    ids=["text", "zero", "endless", "no-key", "no-model"],
)
def test_what_cannot_be_written_stops_the_launch_with_a_sentence(
    env: dict[str, str], says: str, openhands: Path
) -> None:
    done, llm = launch(openhands, **env)
    assert (done.returncode, done.stdout, llm) == (2, "", {})
    assert f"openhands: {says}" in done.stderr


def test_a_model_the_user_names_is_taken_as_it_is(openhands: Path) -> None:
    llm = launch(openhands, LLM_MODEL="azure/deployed", LLM_API_VERSION="2025-04-01")[1]
    assert (llm["model"], llm["api_version"]) == ("azure/deployed", "2025-04-01")
