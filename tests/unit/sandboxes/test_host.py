from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_benchflow.sandboxes._host import find_python, package_sources, public_sources, python_mounts


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a home and a PATH in which no interpreter is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def answering(home: Path, version: str) -> str:
    """Return a program that answers as an interpreter of that version."""
    return f"#!/bin/sh\nprintf '%s\\n' {home}/real {version}\n"


def test_the_interpreter_that_runs_this_is_found(home: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = find_python(version)
    assert found is not None
    assert found.is_file()
    assert found.name == f"python{version}"


def test_a_shim_without_a_version_behind_it_is_passed_over(home: Path) -> None:
    executable(home / "bin/python3.99", "#!/bin/sh\necho 'pyenv: python3.99: command not found' >&2\nexit 127\n")
    executable(home / ".pyenv/versions/3.99.2/bin/python3.99", answering(home, "3.99"))
    real = executable(home / "real/bin/python3.99", "")
    assert find_python("3.99") == real


@pytest.mark.parametrize(
    "text",
    ["#!/bin/sh\nexit 0\n", "#!/no/such/interpreter\n", "#!/bin/sh\nprintf '%s\\n' /usr 3.11\n"],
    ids=["silent", "broken", "other"],
)
def test_what_is_no_such_interpreter_is_not_taken_for_one(home: Path, text: str) -> None:
    executable(home / "bin/python3.99", text)
    assert find_python("3.99") is None


def test_only_an_interpreter_outside_usr_is_mounted() -> None:
    assert python_mounts(None) == python_mounts(Path("/usr/bin/python3.12")) == ()
    (mount,) = python_mounts(Path("/opt/py/3.12/bin/python3.12"))
    assert (str(mount.source), mount.target, mount.writable) == ("/opt/py/3.12", "/opt/py/3.12", False)


def test_pips_files_and_variables_say_the_same_to_uv(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = home / "pypi/simple"
    index.mkdir(parents=True)
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text(
        f"[global]\nextra-index-url =\n    file://{index}\n    https://more.invalid/simple\ntimeout = 9\n"
        "[install]\ntrusted-host = more.invalid\nuser = true\n"
    )
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE", "XDG_CONFIG_HOME", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(home / "none"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://first.invalid/simple")
    monkeypatch.setenv("UV_INSECURE_HOST", "mine.invalid")
    env, mounts = package_sources()
    assert env["UV_DEFAULT_INDEX"] == env["PIP_INDEX_URL"] == "https://first.invalid/simple"
    assert env["UV_INDEX"] == f"file://{index} https://more.invalid/simple"
    assert env["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert env["UV_INSECURE_HOST"] == "mine.invalid"
    assert "PIP_USER" not in env
    # The pages of an index link to the files beside it.
    assert index.parent in [mount.source for mount in mounts]


def test_a_broken_configuration_file_is_passed_over(home: Path) -> None:
    (home / ".pip").mkdir()
    (home / ".pip/pip.conf").write_text("index-url = https://x.invalid\n")
    assert "https://x.invalid" not in package_sources()[0].values()


@pytest.mark.parametrize(
    ("variables", "file", "expected"),
    [
        ({}, "", None),
        (
            {},
            "registry = https://mirror.invalid/npm/\n//mirror.invalid/:_authToken=t0ken\n",
            "https://mirror.invalid/npm/",
        ),
        ({}, 'registry="https://a.invalid/"\n@scope:registry=https://b.invalid/\n', "https://a.invalid/"),
        ({}, "registry=${MIRROR}\n", None),
        ({"NPM_CONFIG_REGISTRY": "https://c.invalid/"}, "registry=https://a.invalid/\n", "https://c.invalid/"),
    ],
    ids=["npms-own", "with-a-token", "quoted-beside-a-scope", "named-by-a-variable", "variable-over-file"],
)
def test_npm_gets_its_packages_where_this_host_does(
    home: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], file: str, expected: str | None
) -> None:
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY", "NPM_CONFIG_USERCONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (home / ".npmrc").write_text(file)
    env, _ = package_sources()
    assert env.get("npm_config_registry") == expected
    assert "t0ken" not in str(env)


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ("https://mirror.example.com/pypi/simple", True),
        ("http://mirror.example.com:8080/repository/pypi-2024/simple/", True),
        ("https://user:word@mirror.example.com/simple", False),
        ("https://mirror.example.com/simple?token=word", False),
        ("https://mirror.example.com/8dK2mPq7RtYw3zXv/simple", False),
        ("file:///srv/index", False),
        ("/srv/index", False),
    ],
    ids=["plain", "port", "password", "query", "token-in-the-path", "file", "path"],
)
def test_a_build_hears_of_indexes_that_are_no_secret(monkeypatch: pytest.MonkeyPatch, asked: str, passed: bool) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", asked)
    monkeypatch.setenv("npm_config_registry", asked)
    found = public_sources()
    assert (found.get("PIP_INDEX_URL"), found.get("npm_config_registry")) == ((asked,) * 2 if passed else (None, None))
    assert found.get("UV_DEFAULT_INDEX") == found.get("PIP_INDEX_URL")
