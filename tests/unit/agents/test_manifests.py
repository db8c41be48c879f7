"""Manifests are read with care, and name their agents."""

from __future__ import annotations

import subprocess
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
skill_paths = ["$HOME/skills"]
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
    assert (manifest.name, manifest.skill_paths, manifest.host.terminal_tools) == (
        "invented",
        ("$HOME/skills",),
        ("done",),
    )
    assert manifest.env_mapping == {"BENCHFLOW_PROVIDER_API_KEY": "INVENTED_KEY"}
    assert manifest.dialect == "chat"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"1.0"', '"2.0"', "contract_version is '2.0'; this package reads version 1.x"),
        ('name = "invented"', "name = 3", "name is 3; it takes a string"),
        ('name = "invented"', "", "name is missing"),
        ('["$HOME/skills"]', '"skills"', "skill_paths is 'skills'; it takes a list of strings"),
        ('["$HOME/skills"]', "[1]", r"skill_paths is \[1\]; it takes a list of strings"),
        ('"true"', '"true"\ninstall_timeout = true', "install_timeout is True; it takes a whole number"),
        ('"true"', '"true"\nprotocol = "mcp"', "protocol is 'mcp'; it takes acp"),
        ('"true"', '"true"\ncolour = "red"', "colour is not known; there are: acp_model_format"),
        ('version = "3"', "colour = 3", "host.colour is not known"),
        ('version = "3"', "versions = [3]", r"host.versions is \[3\]; it takes a table of strings"),
        ("[host]", "[host", "not TOML"),
    ],
    ids=["major", "type", "missing", "list", "item", "bool", "protocol", "unknown", "host", "versions", "syntax"],
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


def test_a_version_is_chosen_behind_an_at() -> None:
    load = registry.load
    assert registry.canonical("agents", "oh@1.28.1") == "openhands@1.28.1"
    chosen = load("agents", "oh@1.28.1", "agent")("oh@1.28.1")
    assert (chosen.name, chosen.version) == ("openhands", "1.28.1")
    assert load("agents", "openhands@1.16.0", "agent")("openhands@1.16.0").version == "1.16.0"
    with pytest.raises(UsageError, match=r"openhands has no version '9'; it comes in: 1\.16\.0, 1\.28\.1"):
        load("agents", "openhands@9", "agent")("openhands@9")
    with pytest.raises(UsageError, match="openhands has no version ''"):
        load("agents", "openhands@", "agent")("openhands@")
    with pytest.raises(UsageError, match="oracle comes in one version only; leave out @2"):
        load("agents", "oracle@2", "agent")
    with pytest.raises(UsageError, match="nothing is named 'opnhands@1'"):
        load("agents", "opnhands@1", "agent")


@pytest.mark.parametrize("name", ["baseline", "openhands"])
def test_shipped_commands_are_good_posix_shell(name: str) -> None:
    manifest = shipped(name)
    assert manifest is not None
    for command in (manifest.install_cmd, manifest.launch_cmd):
        done = subprocess.run(["dash", "-n"], input=command, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
