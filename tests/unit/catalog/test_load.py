"""Every field of the contract is read, and what a field cannot be is refused with file, key and what it takes."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from pytest_benchflow.catalog.check import SCHEMA
from pytest_benchflow.catalog.load import CONTRACT_FIELDS, MODEL_FORMATS, Manifest, load_manifest
from pytest_benchflow.catalog.write import manifest_text
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

EVERY: dict[str, Any] = {
    "contract_version": "1.0",
    "name": "courier",
    "description": "Brings letters",
    "install_cmd": "set -eu\ntrue",
    "launch_cmd": "exec courier",
    "protocol": "acp",
    "api_protocol": "anthropic-messages",
    "acp_model_format": "provider/model",
    "supports_acp_set_model": False,
    "requires_env": ["COURIER_TENANT"],
    "install_timeout": 60,
    "env_mapping": {"BENCHFLOW_PROVIDER_MODEL": "COURIER_MODEL"},
    "default_model": "swift",
    "skill_paths": ["$HOME/.courier/skills"],
    "home_dirs": [".courier"],
    "aliases": ["post"],
}
CONTRACT: dict[str, Any] = json.loads(SCHEMA.read_text("utf-8"))


def load(directory: Path, **changes: Any) -> Manifest:
    """Read the manifest with some values changed; None: left out."""
    file = directory / "manifest.toml"
    values = {key: value for key, value in (EVERY | changes).items() if value is not None}
    file.write_text(manifest_text(values), "utf-8")
    return load_manifest(file)


def as_read(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_every_field_of_the_contract_is_read(tmp_path: Path) -> None:
    manifest = load(tmp_path)
    assert set(EVERY) == set(CONTRACT_FIELDS) == set(CONTRACT["properties"])
    assert {name: getattr(manifest, name) for name in CONTRACT_FIELDS} == {
        name: as_read(value) for name, value in EVERY.items()
    }
    assert manifest.file == tmp_path / "manifest.toml"


def test_schema_and_loader_require_and_default_the_same(tmp_path: Path) -> None:
    assert CONTRACT["required"] == ["contract_version", "name", "install_cmd", "launch_cmd"]
    bare = load(tmp_path, **{name: None for name in EVERY if name not in CONTRACT["required"]})
    defaults = {item.name: getattr(bare, item.name) for item in fields(Manifest)}
    assert (defaults["protocol"], defaults["acp_model_format"]) == ("acp", "bare")
    assert defaults["supports_acp_set_model"] is True
    assert (defaults["env_mapping"], defaults["requires_env"], defaults["aliases"]) == ({}, (), ())
    assert CONTRACT["properties"]["acp_model_format"]["enum"] == list(MODEL_FORMATS)


# Each is refused by the loader and by the schema, which nobody keeps in step but this.
WRONG = {
    "no-minor": ("contract_version", "1", "contract_version is '1'; this package reads version 1.x"),
    "major": ("contract_version", "2.0", "contract_version is '2.0'"),
    "word": ("contract_version", "v1.0", "contract_version is 'v1.0'"),
    "no-name": ("name", "", "name is missing"),
    "path": ("name", "../courier", "'../courier' is no name; it takes up to 64 letters"),
    "version-in-name": ("name", "courier@2", "'courier@2' is no name"),
    "alias": ("aliases", ["a b"], "'a b' is no name"),
    "no-install": ("install_cmd", "", "install_cmd is missing"),
    "no-launch": ("launch_cmd", None, "launch_cmd is missing"),
    "protocol": ("protocol", "mcp", "protocol is 'mcp'; it takes acp"),
    "set-model": ("supports_acp_set_model", "no", "supports_acp_set_model is 'no'; it takes true or false"),
    "no-time": ("install_timeout", 0, "install_timeout is 0; it takes seconds, at least 1"),
    "half-a-second": ("install_timeout", 1.5, "install_timeout is 1.5; it takes a whole number"),
    "mapping": ("env_mapping", {"A": 1}, "env_mapping is {'A': 1}; it takes a table of strings"),
    "variable": ("requires_env", ["A=B"], "requires_env holds 'A=B'; it takes names of variables"),
    "mapped": ("env_mapping", {"A": "B C"}, "env_mapping holds 'B C'; it takes names of variables"),
    "mapped-from": ("env_mapping", {"": "B"}, "env_mapping holds ''; it takes names of variables"),
    "skills": ("skill_paths", ["/srv"], "skill_paths holds '/srv'; it takes paths that begin with $HOME/"),
    "command": ("skill_paths", ["$HOME/$(id)"], "skill_paths holds '$HOME/$(id)'; it takes paths that begin"),
    "quote": ("skill_paths", ['$HOME/a"b'], "skill_paths holds '$HOME/a\"b'; it takes paths that begin"),
    "above-home": ("home_dirs", ["a/../.."], "home_dirs holds 'a/../..'; it takes relative paths without"),
    "root": ("home_dirs", ["/etc"], "home_dirs holds '/etc'; it takes"),
    "list": ("home_dirs", ".courier", "home_dirs is '.courier'; it takes a list of strings"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_field_cannot_be_is_refused(case: str, tmp_path: Path) -> None:
    name, value, says = WRONG[case]
    with pytest.raises(UsageError) as error:
        load(tmp_path, **{name: value})
    assert str(error.value).startswith(f"{tmp_path / 'manifest.toml'}: {says}")
    values = {key: each for key, each in (EVERY | {name: value}).items() if each is not None}
    assert not Draft202012Validator(CONTRACT).is_valid(values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("aliases = " + "[" * 3000 + "]" * 3000, "not TOML that can be read (its values lie too deep in each other)"),
        ("install_timeout = " + "9" * 5000, "not TOML (Exceeds the limit"),
        ("install_timeout = " + "9" * 400, "install_timeout is 999"),
        ('default_model = "a\\u0000b"', "default_model holds a NUL"),
        ('aliases = ["' + "a" * 5000 + '"]', "'aaaa"),
        ("[host]\nstart_timeout = nan", "host.start_timeout is nan; it takes seconds, at least 0.001"),
        ("[host]\nstart_timeout = -5", "host.start_timeout is -5; it takes seconds"),
        ('[host]\nversion = "../../x"', "host.version: '../../x' is no version; it takes letters"),
        ('[host.versions]\n"a/b" = "untested"', "host.versions: 'a/b' is no version"),
        ('[host]\npython = "3.12; id"', "host.python is '3.12; id'; it takes a version"),
        ('[host]\nsettings = "a\\u0000"', "host.settings holds a NUL"),
    ],
    ids=[
        "deep",
        "digits",
        "years",
        "nul",
        "long",
        "nan",
        "negative",
        "path",
        "path-of-others",
        "python",
        "nul-of-host",
    ],
)
def test_what_would_fail_only_as_it_runs_is_refused_in_few_words(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "manifest.toml"
    values = {name: EVERY[name] for name in CONTRACT["required"]}
    file.write_text(f"{manifest_text(values)}{text}\n", "utf-8")
    with pytest.raises(UsageError) as error:
        load_manifest(file)
    assert str(error.value).startswith(f"{file}: {says}")
    assert len(str(error.value)) < len(str(file)) + 500


@pytest.mark.parametrize("version", ["1." + "9" * 5000, "1" * 5000 + ".0"], ids=["minor", "major"])
def test_a_version_of_thousands_of_digits_is_none(version: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contract_version is '1"):
        load(tmp_path, contract_version=version)


def test_a_pipe_is_no_manifest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "manifest.toml")
    with pytest.raises(UsageError, match="cannot be read: it is no regular file"):
        load_manifest(tmp_path / "manifest.toml")


def test_a_higher_minor_version_may_know_more_of_a_host(tmp_path: Path) -> None:
    file = tmp_path / "manifest.toml"
    file.write_text(f"{manifest_text(EVERY | {'contract_version': '1.9'})}\n[host]\nshiny = 1\n", "utf-8")
    assert load_manifest(file).contract_version == "1.9"


def test_the_schema_takes_what_the_loader_takes() -> None:
    assert Draft202012Validator(CONTRACT).is_valid(EVERY)


def test_a_whole_number_may_be_written_with_a_point(tmp_path: Path) -> None:
    manifest = load(tmp_path, install_timeout=1200.0)
    assert (manifest.install_timeout, type(manifest.install_timeout)) == (1200, int)


def test_a_form_of_models_that_is_not_known_matters_only_where_a_model_is_named(tmp_path: Path) -> None:
    assert load(tmp_path, acp_model_format="prefixed").acp_model_format == "prefixed"
    with pytest.raises(UsageError, match="acp_model_format is 'prefixed'; it takes one of: bare, provider/model, "):
        load(tmp_path, acp_model_format="prefixed", supports_acp_set_model=True)


@pytest.mark.parametrize(
    ("said", "variable", "protocol", "dialect"),
    [
        ("openai-responses", "COURIER_URL", "openai-responses", "responses"),
        ("", "COURIER_URL", "openai-completions", "chat"),
        ("", "ANTHROPIC_BASE_URL", "anthropic-messages", "messages"),
        ("", "GOOGLE_GEMINI_BASE_URL", "google-generative-ai", "generateContent"),
        ("openai-completions", "ANTHROPIC_BASE_URL", "openai-completions", "chat"),
        ("pigeon-post", "COURIER_URL", "pigeon-post", None),
    ],
    ids=["said", "usual", "anthropic", "google", "said-over-the-variable", "unknown"],
)
def test_an_agent_that_does_not_say_how_it_speaks_speaks_as_its_variable_is_called(
    said: str, variable: str, protocol: str, dialect: str | None, tmp_path: Path
) -> None:
    manifest = load(tmp_path, api_protocol=said, env_mapping={"BENCHFLOW_PROVIDER_BASE_URL": variable})
    assert (manifest.spoken_protocol, manifest.dialect) == (protocol, dialect)


KEY = {"BENCHFLOW_PROVIDER_API_KEY": "COURIER_TOKEN"}


@pytest.mark.parametrize(
    ("required", "mapping", "given", "unmet"),
    [
        (("COURIER_TENANT",), KEY, (), ("COURIER_TENANT",)),
        (("COURIER_TENANT",), KEY, ("COURIER_TENANT",), ()),
        (("COURIER_TOKEN",), KEY, (), ()),
        (("OTHER_API_KEY",), KEY, (), ()),
        (("OTHER_API_KEY",), {}, (), ("OTHER_API_KEY",)),
        (("COURIER_DIR",), {"BENCHFLOW_SKILLS_DIR": "COURIER_DIR"}, (), ("COURIER_DIR",)),
    ],
    ids=["of-the-user", "given", "mapped", "a-key-of-the-gateway's", "a-key-of-the-user's", "not-always-there"],
)
def test_only_what_nobody_supplies_is_unmet(
    required: tuple[str, ...], mapping: dict[str, str], given: tuple[str, ...], unmet: tuple[str, ...], tmp_path: Path
) -> None:
    manifest = replace(load(tmp_path), requires_env=required, env_mapping=mapping)
    assert manifest.unmet(given) == unmet


def test_a_line_end_that_toml_has_not_is_not_taken_for_one(tmp_path: Path) -> None:
    load(tmp_path)
    file = tmp_path / "manifest.toml"
    file.write_bytes(file.read_bytes().replace(b"set -eu\n", b"set -eu\r"))
    with pytest.raises(UsageError, match="not TOML"):
        load_manifest(file)
