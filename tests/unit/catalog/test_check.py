"""What authors are told of their manifests: errors and warnings, by the contract and by real shells."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.catalog.check import check
from pytest_benchflow.catalog.load import shipped
from pytest_benchflow.catalog.write import manifest_text
from pytest_benchflow.errors import UsageError
from tests.unit.catalog.test_load import EVERY

if TYPE_CHECKING:
    from pathlib import Path

needs_shellcheck = pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")


def write(directory: Path, name: str = "courier", **changes: Any) -> Path:
    file = directory / name / "manifest.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in (EVERY | {"name": name} | changes).items() if value is not None}
    file.write_text(manifest_text(values), "utf-8")
    return file


def said(path: Path, level: str | None = None) -> list[str]:
    return [finding.text for finding in check(path).findings if level in (None, finding.level)]


def test_nothing_is_found_in_a_good_one(tmp_path: Path) -> None:
    checked = check(write(tmp_path))
    assert (checked.findings, checked.with_any("error")) == ([], 0)
    assert {"sh", "dash"} <= set(checked.tools)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"launch_cmd": None}, "'launch_cmd' is a required property"),
        ({"acp_model_format": "prefixed"}, "acp_model_format: 'prefixed' is not one of"),
        ({"skill_paths": ["$HOME/a", "b"]}, "skill_paths.1: 'b' does not match"),
        ({"home_dirs": ["../elsewhere"]}, "home_dirs.0: '../elsewhere' should not be valid under"),
        ({"env_mapping": {"A": "B C"}}, "env_mapping.A: 'B C' does not match"),
        ({"contract_version": "2.0"}, "contract_version is '2.0'; this package reads version 1.x"),
        ({"install_cmd": "if true; then"}, "install_cmd: sh -n: "),
        ({"launch_cmd": "exec (cat)"}, "launch_cmd: dash -n: "),
        ({"aliases": ["oracle"]}, "'oracle' is taken by the agent oracle, which it does not replace"),
        ({"aliases": ["oh"]}, "'oh' is taken by an alias of the agent openhands"),
    ],
    ids=["missing", "word", "item", "parent", "key", "major", "syntax", "dash", "program", "alias"],
)
def test_an_error_says_where_and_what(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    write(tmp_path, **changes)
    errors = said(tmp_path, "error")
    assert any(text.startswith(says) for text in errors), errors


def test_no_error_is_said_twice(tmp_path: Path) -> None:
    write(tmp_path, protocol="mcp")
    assert said(tmp_path) == ["protocol: 'mcp' was given; 'acp' is allowed"]


def test_a_long_value_is_not_repeated_whole(tmp_path: Path) -> None:
    write(tmp_path, api_protocol=None, skill_paths=["x" * 5000])
    (text,) = said(tmp_path)
    assert len(text) < 400


def test_unknown_keys_are_passed_over_in_a_higher_minor_version_alone(tmp_path: Path) -> None:
    file = write(tmp_path)
    known = file.read_text()
    file.write_text('colour = "red"\n' + known)
    (text,) = said(file)
    assert text.startswith("not known: 'colour'; there are: acp_model_format, aliases, ")
    assert text.endswith(", supports_acp_set_model")
    file.write_text('colour = "red"\n' + known.replace('"1.0"', '"1.3"'))
    assert said(file) == []
    file.write_text('colour = "red"\n' + known.replace('"1.0"', '"1.3"').replace("= false", '= "no"'))
    assert said(file) == ["supports_acp_set_model: 'no' is not of type 'boolean'"]


def test_two_of_one_name_are_found(tmp_path: Path) -> None:
    first, second = write(tmp_path), write(tmp_path, "later", aliases=["courier"])
    findings = check(tmp_path).findings
    assert [finding.file for finding in findings] == [second]
    assert f"'courier' is an alias here and the name in {first}" in findings[0].text


def test_a_host_table_is_this_packages_own_and_is_checked_too(tmp_path: Path) -> None:
    file = write(tmp_path)
    text = file.read_text()
    file.write_text(text + '\n[host]\nversion = "3"\n')
    assert said(file) == []
    file.write_text(text + "\n[host]\nversion = 3\n")
    assert said(file) == ["host.version is 3; it takes a string"]


@needs_shellcheck
def test_shellcheck_finds_what_no_parser_does(tmp_path: Path) -> None:
    write(tmp_path, install_cmd="set -eu\nrm -rf $HOME/x\n[[ -d x ]]")
    levels = [(finding.level, finding.text.split(":")[0]) for finding in check(tmp_path).findings]
    assert ("warning", "install_cmd, line 3") in levels
    assert any("SC2086" in text for text in said(tmp_path, "warning"))


def test_what_is_checked_without_shellcheck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "shellcheck" else real(name))
    write(tmp_path, install_cmd="set -eu\nrm -rf $HOME/x")
    checked = check(tmp_path)
    assert ("shellcheck" in checked.tools, checked.findings) == (False, [])


def test_what_holds_no_manifest_is_wrong_use(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match=r"is no manifest and holds no manifest\.toml"):
            check(path)


CATALOGUE = [name for name in registry.shipped("agents") if shipped(name) is not None]


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogues_own_are_clean(name: str) -> None:
    manifest = shipped(name)
    assert manifest is not None
    checked = check(manifest.file)
    assert checked.findings == []
    if "shellcheck" not in checked.tools:
        pytest.skip("only parsed, as shellcheck is not installed")


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogues_own_commands_are_written_to_be_read(name: str) -> None:
    manifest = shipped(name)
    assert manifest is not None
    assert manifest.description
    for command in (manifest.install_cmd, manifest.launch_cmd):
        lines = command.splitlines()
        assert max(map(len, lines)) <= 120
        # One command alone may be one line.
        assert len(lines) == 1 or lines[0] == "set -eu"
        assert not [line for line in lines if " && " in line and len(line) > 100]
