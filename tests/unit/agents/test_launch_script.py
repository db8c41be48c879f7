"""What comes before an agent's own launch: good POSIX shell that brings what the installation left, and no more."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.catalog.load import Manifest
from pytest_benchflow.contracts import INSTALL_HOME

if TYPE_CHECKING:
    from pathlib import Path

AGENT = CatalogAgent(
    Manifest(
        contract_version="1.0",
        name="courier",
        install_cmd="true",
        launch_cmd='printf "%s" "$WORKSPACE"; env',
        skill_paths=("$HOME/.courier/skills", "$WORKSPACE/skills"),
        home_dirs=(".courier", ".config/courier", "it's mine"),
    )
)


def script(workdir: str = "/it's here", *, skills: bool = True) -> str:
    context: Any = SimpleNamespace(sandbox=SimpleNamespace(workdir=workdir), skills_dir="/skills" if skills else None)
    return AGENT._script(context)


def launch(home: Path, installed: Path) -> str:
    """Run the script with another place for what was installed, and return its output."""
    text = script().replace(INSTALL_HOME, str(installed))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "BENCHFLOW_SKILLS_DIR": "/skills"}
    done = subprocess.run(["dash", "-eu", "-c", text], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    for name in (".local/bin/courier", ".courier/a/settings", ".config/courier/b", "it's mine/c", ".secret/d"):
        path = tmp_path / "installed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        path.chmod(0o444)
    return tmp_path / "installed"


def test_programs_are_linked_and_directories_copied_to_be_written(home: Path, installed: Path) -> None:
    out = launch(home, installed)
    assert out.startswith("/it's here")
    assert f"BENCHFLOW_AGENT_HOME={home}\n" in out
    assert (home / ".local/bin/courier").readlink() == installed / ".local/bin/courier"
    assert (home / ".courier/skills").readlink().as_posix() == "/skills"
    for name in (".courier/a/settings", ".config/courier/b", "it's mine/c"):
        assert not (home / name).is_symlink()
        assert (home / name).stat().st_mode & 0o200
    assert not (home / ".secret").exists()
    assert (installed / ".courier/a/settings").read_text() == ".courier/a/settings"


def test_what_is_there_already_stays(home: Path, installed: Path) -> None:
    (home / ".courier").mkdir()
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/courier").write_text("mine")
    (home / ".config").symlink_to("nowhere")
    (home / "it's mine").symlink_to("nowhere")
    (installed / ".config/courier/b").unlink()
    (installed / ".config/courier").rmdir()
    launch(home, installed)
    assert (home / ".local/bin/courier").read_text() == "mine"
    assert not (home / ".courier/a").exists()
    assert (home / "it's mine").is_symlink()


@pytest.mark.parametrize("left", ["nothing", "no-program"])
def test_an_installation_that_left_nothing_there_brings_nothing(left: str, home: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    if left == "no-program":
        (installed / ".local/bin").mkdir(parents=True)
    launch(home, installed)
    assert [path.name for path in home.rglob("*") if not path.is_dir()] == ["skills"]


@pytest.mark.parametrize("skills", [True, False], ids=["with-skills", "without"])
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_is_clean(skills: bool) -> None:
    argv = ["shellcheck", "--norc", "--shell=sh", "-"]
    done = subprocess.run(argv, input=script(skills=skills), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("env", "heard"),
    [({"LLM_REASONING_EFFORT": " MAX"}, "max"), ({}, None)],
    ids=["given_to_the_agent", "given_by_the_option_alone"],
)
def test_the_agent_hears_the_effort_in_the_spelling_of_the_option(env: dict[str, str], heard: str | None) -> None:
    context: Any = SimpleNamespace(
        base_url="http://gateway",
        token="t",
        model="m",
        llm_timeout_sec=1.0,
        reasoning_effort="max",
        skills_dir=None,
        env=env,
    )
    given = AGENT.environment(context)
    assert (given.get("LLM_REASONING_EFFORT"), given["BENCHFLOW_REASONING_EFFORT"]) == (heard, "max")
