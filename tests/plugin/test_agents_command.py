"""`pytest-benchflow agents`: which there are, what they are made of, and whether manifests keep the contract."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli
from tests.plugin.agentsdir import declare

if TYPE_CHECKING:
    from tests.plugin.bench import Bench


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of the command."""
    code = cli.main(["agents", *words])
    read = capsys.readouterr()
    return code, read.out, read.err


@pytest.mark.parametrize("words", [(), ("list",)], ids=["no-action", "list"])
def test_the_catalogue_is_listed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *words)
    assert code == 0
    lines = out.splitlines()
    assert "nop: ready (part of this package)" in lines
    facts = lines[next(number for number, line in enumerate(lines) if line.startswith("openhands: ")) + 1]
    assert " · aliases: oh · speaks openai-completions" in facts
    assert "from " not in facts


def test_agents_of_others_are_listed_with_their_files(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", "agents")
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(bench.path / "cache"))
    declare(bench.path / "agents")
    declare(bench.path / "agents", name="openhands", aliases=["oh"], description="Another\x1b[31m one")
    code, out, _ = run(capsys)
    assert code == 0
    assert "courier: (no description)" in out
    assert (
        "  latest, not installed yet: its first rollout installs it · aliases: courier, post · "
        "speaks openai-completions · from agents/acp/courier/manifest.toml\n" in out
    )
    assert "openhands: Another\\x1b[31m one\n" in out
    assert out.endswith("BENCHFLOW_AGENTS_DIR: agents (in no git checkout)\n")
    assert "from agents/acp/openhands/manifest.toml" in run(capsys)[1]
    assert run(capsys, "show", "oh")[1].startswith("# agents/acp/openhands/manifest.toml\n")


@pytest.mark.parametrize("name", ["openhands@nope", "opencode@", "nop@1"], ids=["unknown", "empty", "program"])
def test_a_version_that_there_is_not_is_not_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", name)
    assert (code, out) == (2, "")
    assert "version" in err


def test_a_manifest_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "oh")
    assert code == 0
    head, text = out.split("\n", 1)
    assert head.endswith("/catalog/openhands.toml")
    assert tomllib.loads(text)["host"]["terminal_tools"] == ["finish"]
    assert run(capsys, "show", "oracle")[1] == "oracle is a program of a package, without a manifest\n"


def test_an_unknown_agent_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "orcle")
    assert (code, out) == (2, "")
    assert "there is no agent 'orcle'; there are: baseline, " in err


def test_a_wrong_directory_is_wrong_use_and_no_traceback(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", "agents")
    declare(bench.path / "agents", launch_cmd=None)
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "BENCHFLOW_AGENTS_DIR: agents/acp/courier/manifest.toml: launch_cmd is missing" in err
    assert cli.main(["doctor"]) == 2


def test_an_export_keeps_the_contract(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "export", "out")
    assert code == 0
    assert "out/acp/openhands/manifest.toml\n" in out
    code, out, err = run(capsys, "export", "out")
    assert (code, out) == (2, "")
    assert "out is not empty" in err
    assert run(capsys, "export", "out", "--force")[0] == 0
    code, out, _ = run(capsys, "check", "out", "--strict")
    assert (code, out.splitlines()[0]) == (0, f"{len(list(bench.path.glob('out/acp/*')))} manifests, 0 with errors")


def test_a_place_that_cannot_be_written_to_is_wrong_use(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.write(bench.path, {"out/acp": "no directory"})
    code, out, err = run(capsys, "export", "out", "--force")
    assert (code, out) == (2, "")
    assert "manifest.toml cannot be written: Not a directory" in err


PLUGIN = """
from pytest_benchflow.agents.nop import Nop

def pytest_benchflow_agents():
    return {"herald": lambda name: Nop()}
"""


def test_agents_of_installed_packages_are_listed(bench: Bench) -> None:
    metadata = "Metadata-Version: 2.1\nName: herald\nVersion: 1.0\nRequires-Dist: pytest-benchflow\n"
    files = {"METADATA": metadata, "entry_points.txt": "[pytest11]\nherald = herald\n"}
    bench.write(
        bench.path / "site", {"herald.py": PLUGIN, **{f"herald-1.0.dist-info/{k}": v for k, v in files.items()}}
    )
    for command in (["agents"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, "-m", "pytest_benchflow", *command],
            env={**os.environ, "PYTHONPATH": str(bench.path / "site")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "herald: registered by an installed package" in [line.strip() for line in done.stdout.splitlines()]


def test_errors_and_with_strict_warnings_too_fail_a_check(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(bench.path / "agents", launch_cmd="if", name="hasty")
    code, out, _ = run(capsys, "check", "agents")
    assert code == 1
    assert "agents/acp/hasty/manifest.toml: error: launch_cmd: sh -n: " in out
    assert "1 manifest, 1 with errors" in out
    declare(bench.path / "agents", launch_cmd="exec courier $1", name="hasty")
    code, out, _ = run(capsys, "check", "agents")
    assert code == 0
    # What is not installed checks nothing, and that is said.
    monkeypatch.setenv("PATH", str(bench.path))
    code, out, _ = run(capsys, "check", "agents")
    assert (code, "shellcheck is not installed: commands were checked by sh -n" in out) == (0, True)


def test_a_check_of_nothing_is_wrong_use(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", str(bench.path))
    assert (code, "holds no manifest.toml" in err) == (2, True)
