"""A directory of others' manifests is read whole or not at all, and says which state of which checkout it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import registry
from pytest_benchflow.catalog.directory import declare_agents, others, read_directory
from pytest_benchflow.catalog.load import find, load_manifest, shipped
from pytest_benchflow.catalog.write import export
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = 'contract_version = "1.0"\nname = "{name}"\ninstall_cmd = "true"\nlaunch_cmd = "exec cat"\naliases = {aliases}\n'


def write(directory: Path, name: str, *aliases: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "manifest.toml"
    file.write_text(TEXT.format(name=name, aliases=list(aliases)).replace("'", '"'))
    return file


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=Ada", "-c", "user.email=ada@example.invalid"]
    done = subprocess.run(
        ["git", "-C", str(directory), *settings, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def forgetful() -> Iterator[None]:
    """Forget what a test declared."""
    yield
    registry.forget_registered()


def test_manifests_are_found_at_any_depth_and_none_in_what_tools_made(tmp_path: Path) -> None:
    write(tmp_path, "at-the-top")
    write(tmp_path / "acp/deep/down", "deep")
    for skipped in (".git", ".venv", "venv", "node_modules", "build", "dist", "target", "__pycache__", "site-packages"):
        write(tmp_path / "acp" / skipped / "x", "made-by-a-tool")
    (tmp_path / "acp/agent.toml").write_text("of another kind")
    (tmp_path / "acp/loop").symlink_to(tmp_path)
    assert list(read_directory(tmp_path).manifests) == ["at-the-top", "deep"]


def test_every_fault_is_named_with_its_file(tmp_path: Path) -> None:
    write(tmp_path / "good", "good")
    write(tmp_path / "torn", "torn").write_text('name = "torn')
    write(tmp_path / "later", "later").write_text(TEXT.format(name="later", aliases=[]).replace('"1.0"', '"2.0"'))
    with pytest.raises(UsageError) as error:
        read_directory(tmp_path)
    first, second = str(error.value).splitlines()
    assert first.startswith(
        f"{tmp_path}/later/manifest.toml: contract_version is '2.0'; this package reads version 1.x"
    )
    assert second.startswith(f"{tmp_path}/torn/manifest.toml: not TOML")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (("one",), ("one",), "'one' is the name here and the name in"),
        (("one", "x"), ("two", "x"), "'x' is an alias here and an alias in"),
        (("one", "two"), ("two",), "'two' is the name here and an alias in"),
        (("one",), ("two", "one"), "'one' is an alias here and the name in"),
    ],
    ids=["names", "aliases", "name-and-alias", "alias-and-name"],
)
def test_no_two_agents_share_a_name(first: tuple[str, ...], second: tuple[str, ...], says: str, tmp_path: Path) -> None:
    write(tmp_path / "a", *first)
    write(tmp_path / "b", *second)
    with pytest.raises(UsageError) as error:
        read_directory(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/b/manifest.toml: {says} {tmp_path}/a/manifest.toml; ")


def test_an_alias_may_repeat_the_name(tmp_path: Path) -> None:
    write(tmp_path / "a", "one", "one", "uno", "uno")
    assert list(read_directory(tmp_path).manifests) == ["one"]


@pytest.mark.parametrize("what", ["absent", "a-file", "empty"])
def test_a_directory_that_holds_nothing_is_refused(what: str, tmp_path: Path) -> None:
    place = tmp_path / what
    if what == "a-file":
        place.touch()
    elif what == "empty":
        place.mkdir()
    with pytest.raises(UsageError, match=r"holds no manifest\.toml" if what == "empty" else "is no directory"):
        read_directory(place)


def test_the_state_of_the_checkout_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "repository/acp/one", "one")
    place = tmp_path / "repository/acp"
    assert (read_directory(place).commit, str(read_directory(place))) == (None, f"{place} (in no git checkout)")
    git(tmp_path / "repository", "init", "--quiet")
    git(tmp_path / "repository", "add", ".")
    git(tmp_path / "repository", "commit", "--quiet", "-m", "Declare an agent")
    commit = git(tmp_path / "repository", "rev-parse", "HEAD")
    assert str(read_directory(place)) == f"{place} (commit {commit})"
    # What lies elsewhere in the repository says nothing of these manifests.
    (tmp_path / "repository/notes").touch()
    assert read_directory(place).dirty is False
    file.write_text(file.read_text() + "\n")
    assert str(read_directory(place)) == f"{place} (commit {commit}, with uncommitted changes)"


def test_a_manifest_that_cannot_be_read_is_a_fault_of_its_file(tmp_path: Path) -> None:
    write(tmp_path / "a", "one").unlink()
    (tmp_path / "a/manifest.toml").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"a/manifest\.toml: cannot be read: No such file or directory"):
        read_directory(tmp_path)


def test_a_directory_that_cannot_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "courier")
    monkeypatch.chdir(tmp_path)
    # Deeper than a path can be long: also for root, whom no permission stops.
    for _ in range(25):
        Path("d" * 200).mkdir()
        os.chdir("d" * 200)
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        read_directory(tmp_path)


def test_a_name_that_is_too_long_is_no_directory() -> None:
    with pytest.raises(UsageError, match="is no directory; it takes one"):
        read_directory(Path("d" * 5000))


@pytest.mark.usefixtures("forgetful")
def test_an_error_leaves_nothing_half_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path))
    write(tmp_path / "a", "good")
    wrong = write(tmp_path / "b", "bad", "nop")
    with pytest.raises(UsageError, match=rf"^BENCHFLOW_AGENTS_DIR: {wrong}: 'nop' is taken by the agent nop"):
        declare_agents()
    assert not registry.declared()
    assert "good" not in registry.names("agents")
    write(tmp_path / "b", "bad", "worse")
    declare_agents()
    assert (registry.canonical("agents", "worse"), find("worse")) == ("bad", load_manifest(wrong))


@pytest.mark.usefixtures("forgetful")
def test_the_catalogues_own_manifest_stays_the_catalogues_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [manifest for name in registry.shipped("agents") if (manifest := shipped(name))]
    export(ours, tmp_path)
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path))
    directory = declare_agents()
    assert directory is not None
    assert list(directory.manifests) == [manifest.name for manifest in ours]
    assert not registry.declared()
    file = tmp_path / "acp/openhands/manifest.toml"
    file.write_text(file.read_text().replace("OpenHands CLI", "OpenHands' CLI"))
    assert list(others(read_directory(tmp_path).manifests)) == ["openhands"]
    declare_agents()
    found = find("oh")
    assert found is not None
    assert found.file == file
    assert shipped("oh") != found
