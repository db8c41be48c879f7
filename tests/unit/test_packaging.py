"""What is installed: the lock fits the project and any machine, and a wheel holds what the package needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "ci.txt"
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEV: list[str] = PYPROJECT["project"]["optional-dependencies"]["dev"]
LOCKED_FOR: list[str] = [*PYPROJECT["project"]["dependencies"], *DEV, *PYPROJECT["build-system"]["requires"]]
SHIPPED = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "pytest_benchflow").rglob("*.*")
    if path.suffix in (".json", ".sh", ".toml")
)


def pins() -> dict[str, Version]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def check_lock(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "requirements" / "lock.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of what decides the lock."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_lock_was_made_for_pyproject(project: Path) -> None:
    done = check_lock(project)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('"pytest>=9,<10"', '"pytest>=9,<10",\n  "requests"', id="new-dependency"),
        pytest.param('"pytest>=9,<10"', '"pytest>=9.1,<10"', id="other-bound"),
        pytest.param('"types-PyYAML"', '"types-PyYAML>=7"', id="development-tool"),
        pytest.param('requires-python = ">=3.11"', 'requires-python = ">=3.12"', id="python"),
    ],
)
def test_stale_lock_fails_with_one_sentence(project: Path, old: str, new: str) -> None:
    pyproject = project / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    assert old in text
    pyproject.write_text(text.replace(old, new), encoding="utf-8")
    done = check_lock(project)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "make lock" in done.stderr


def test_changes_beside_the_dependencies_keep_the_lock_fresh(project: Path) -> None:
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text(encoding="utf-8") + "\n[tool.other]\nkey = 1\n", encoding="utf-8")
    assert check_lock(project).returncode == 0


def test_missing_lock_fails_with_one_sentence(project: Path) -> None:
    (project / "requirements" / "ci.txt").unlink()
    done = check_lock(project)
    assert done.returncode == 1
    assert "make lock" in done.stderr


@pytest.mark.parametrize("wanted", LOCKED_FOR, ids=lambda line: Requirement(line).name)
def test_pin_satisfies_what_pyproject_asks_for(wanted: str) -> None:
    requirement = Requirement(wanted)
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)], prereleases=True)


def test_xdist_is_one_that_copies_a_project_to_other_machines() -> None:
    asked = next(each for each in map(Requirement, LOCKED_FOR) if each.name == "pytest-xdist")
    assert not asked.specifier.contains("4.0.0")
    assert asked.specifier.contains(str(pins()["pytest-xdist"]))


def test_every_pin_has_a_hash_and_no_place_of_its_own() -> None:
    text = re.sub(r"\\\n\s*", "", LOCK.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    assert len(lines) == len(pins())
    for line in lines:
        assert re.fullmatch(r"[a-z0-9._-]+==[^ ]+( ; [^-]*?)?(\s*--hash=sha256:[0-9a-f]{64})+", line), line[:80]


def test_all_names_every_extra_a_user_may_want() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == set(extras) - {"all", "dev"}


def test_wheel_holds_what_the_package_needs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "pytest_benchflow", source / "pytest_benchflow", ignore=shutil.ignore_patterns("*.pyc"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
    assert {"pytest_benchflow/py.typed", *SHIPPED} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "tasks/", "benchmarks/")) for name in names)
    assert "benchflow = pytest_benchflow.plugin" in entry_points
    assert "pytest-benchflow = pytest_benchflow.cli:main" in entry_points
