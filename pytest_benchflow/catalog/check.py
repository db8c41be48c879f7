"""Check manifests as their authors should: by the contract's schema, by their shell commands, and among each other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_benchflow import registry
from pytest_benchflow.catalog.directory import FILE_NAME, collisions, manifest_files, others
from pytest_benchflow.catalog.load import Manifest, load_manifest, minor_version, read_toml
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from jsonschema import ValidationError

Level = Literal["error", "warning"]

SCHEMA = Path(__file__).with_name("contract.json")
COMMANDS = ("install_cmd", "launch_cmd")
_SHELLS = ("sh", "dash")
_SHOWN = 300
_TIMEOUT_SEC = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a manifest (error), or may be (warning)."""

    file: Path
    level: Level
    text: str


@dataclass
class Checked:
    """The manifests that were looked at, what was found, and by which tools commands were checked."""

    files: list[Path]
    tools: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)

    def with_any(self, level: Level) -> int:
        """Return how many manifests have a finding of that level."""
        return len({finding.file for finding in self.findings if finding.level == level})


def check(path: Path) -> Checked:
    """Check a manifest, or every one at or below a directory. Raises: UsageError when there is none."""
    # Not Path's own tests, which raise for a name that is too long.
    files = [path] if os.path.isfile(path) else list(manifest_files(path)) if os.path.isdir(path) else []  # noqa: PTH112, PTH113
    if not files:
        raise UsageError(f"{path} is no manifest and holds no {FILE_NAME}; name a file, or a directory that holds some")
    checked = Checked(files, tuple(name for name in (*_SHELLS, "shellcheck") if _found(name)))
    read: list[Manifest] = []
    for file in files:
        try:
            values = read_toml(file)
            checked.findings += _of_schema(file, values)
            read.append(load_manifest(file))
        except UsageError as error:
            # Of a fault that the schema shows too, its own words are enough.
            if not any(finding.file == file for finding in checked.findings):
                checked.findings.append(Finding(file, "error", str(error).removeprefix(f"{file}: ")))
            continue
        checked.findings += _of_commands(read[-1], checked.tools)
    checked.findings += [Finding(manifest.file, "error", text) for manifest, text in collisions(read)]
    by_name = others({manifest.name: manifest for manifest in read})
    checked.findings += [Finding(by_name[name].file, "error", text) for name, text in registry.taken(by_name)]
    return checked


def _of_schema(file: Path, values: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what the contract's schema refuses; unknown keys of a higher minor version are nobody's concern."""
    from jsonschema import Draft202012Validator

    minor = minor_version(file, values)
    contract = {key: value for key, value in values.items() if key != "host"}
    schema = json.loads(SCHEMA.read_text("utf-8"))
    validator = Draft202012Validator(schema)
    for error in sorted(validator.iter_errors(contract), key=lambda each: list(map(str, each.absolute_path))):
        where = ".".join(map(str, error.absolute_path))
        if minor and error.validator == "additionalProperties" and not where:
            continue
        message = _in_words(error, schema["properties"])
        message = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}…"
        yield Finding(file, "error", f"{where}: {message}" if where else message)


def _in_words(error: ValidationError, properties: Collection[str]) -> str:
    """Say what came and what is allowed, where the validator's own words leave one of them out."""
    if error.validator == "const":
        return f"{error.instance!r} was given; {error.validator_value!r} is allowed"
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        unknown = ", ".join(repr(key) for key in error.instance if key not in properties)
        return f"not known: {unknown}; there are: {', '.join(sorted(properties))}"
    return str(error.message)


def _of_commands(manifest: Manifest, tools: tuple[str, ...]) -> Iterator[Finding]:
    for name in COMMANDS:
        command: str = getattr(manifest, name)
        for shell in (each for each in tools if each in _SHELLS):
            done = _run([_found(shell) or shell, "-n"], command)
            if done.returncode != 0:
                yield Finding(manifest.file, "error", f"{name}: {shell} -n: {done.stderr.strip()}")
        if "shellcheck" in tools:
            done = _run(["shellcheck", "--norc", "--shell=sh", "--format=json1", "-"], command)
            for said in json.loads(done.stdout)["comments"]:
                level: Level = "error" if said["level"] == "error" else "warning"
                text = f"{name}, line {said['line']}: SC{said['code']} ({said['level']}): {said['message']}"
                yield Finding(manifest.file, level, text)


def _found(tool: str) -> str | None:
    """Return where a tool is; the shell of the system is never missed."""
    return shutil.which(tool) or (shutil.which(tool, path=os.defpath) if tool in _SHELLS else None)


def _run(argv: list[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, input=text, text=True, capture_output=True, timeout=_TIMEOUT_SEC, check=False)
