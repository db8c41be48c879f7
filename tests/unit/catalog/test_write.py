"""What is exported reads back as it was, in the layout of the repositories that others keep."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_benchflow import registry
from pytest_benchflow.catalog.load import CONTRACT_FIELDS, load_manifest, shipped
from pytest_benchflow.catalog.write import export, manifest_text
from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

OURS = [manifest for name in registry.shipped("agents") if (manifest := shipped(name))]
# TOML holds every character but lone halves of pairs.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3), st.lists(TEXTS, max_size=3))
def test_any_text_reads_back_as_it_was(text: str, table: dict[str, str], items: list[str]) -> None:
    values = {"name": text, "launch_cmd": f"{text}\n{text}", "env_mapping": table, "aliases": items}
    assert tomllib.loads(manifest_text(values)) == values


@pytest.mark.parametrize(
    "text",
    ["a\n'''\nb", "a\nb'", "\n\na", "a\r\nb", "a\tb\n", 'a\\n"b"\n', "\x7f\n\x00", "a b\n…"],
    ids=["fence", "quote-at-the-end", "leading", "windows", "tab", "escapes", "control", "no-break"],
)
def test_scripts_read_back_as_they_were(text: str) -> None:
    assert tomllib.loads(manifest_text({"install_cmd": text})) == {"install_cmd": text}


def test_a_script_stays_readable() -> None:
    assert manifest_text({"install_cmd": 'set -eu\necho "$1"\n'}) == "install_cmd = '''\nset -eu\necho \"$1\"\n'''\n"


def test_only_the_contract_is_written_and_no_default(tmp_path: Path) -> None:
    files = export(OURS, tmp_path / "out")
    assert [file.relative_to(tmp_path / "out").parts for file in files] == [
        ("acp", manifest.name, "manifest.toml") for manifest in OURS
    ]
    for file, ours in zip(files, OURS, strict=True):
        written: dict[str, Any] = tomllib.loads(file.read_text())
        original: dict[str, Any] = tomllib.loads(ours.file.read_text())
        assert written == {key: value for key, value in original.items() if key != "host"}
        read = load_manifest(file)
        assert all(getattr(read, name) == getattr(ours, name) for name in CONTRACT_FIELDS)
        assert read.host.version is None


@pytest.mark.parametrize("linked", ["acp", "acp/{}", "acp/{}/manifest.toml"])
def test_nothing_is_written_through_a_link(linked: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere if not linked.endswith(".toml") else elsewhere.parent).mkdir(exist_ok=True)
    if linked.endswith(".toml"):
        elsewhere.write_text("mine")
    link = tmp_path / "out" / linked.format(OURS[0].name)
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(UsageError, match=f"{link} is a link, and files elsewhere are not written over"):
        export(OURS, tmp_path / "out", force=True)
    assert elsewhere.read_text() == "mine" if elsewhere.is_file() else not list(elsewhere.rglob("*.toml"))


def test_nothing_is_written_over_unasked(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty; name a new directory, or pass --force"):
        export(OURS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    export(OURS, tmp_path, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["acp", "notes.txt"]
    with pytest.raises(UsageError, match="is no directory"):
        export(OURS, tmp_path / "notes.txt", force=True)
