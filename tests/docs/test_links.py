"""Pages of the documentation lead somewhere, and say what the code says."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pytest_benchflow.settings import OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in filter(None, (a or b for a, b in _LINK.findall(page.read_text(encoding="utf-8")))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}, a heading that is not there"


def test_every_page_can_be_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme, f"README.md does not mention docs/{page.name}"


@pytest.mark.parametrize(
    ("page", "mark", "make"),
    [
        pytest.param("README.md", "options", "options_table", id="options"),
        pytest.param("docs/checks.md", "checks", "checks_table", id="checks"),
        pytest.param("docs/conformance.md", "capabilities", "capabilities_table", id="capabilities"),
    ],
)
def test_table_is_what_the_code_says(page: str, mark: str, make: str) -> None:
    table = runpy.run_path(str(ROOT / "docs" / "make_tables.py"))[make]()
    shown = re.search(rf"<!-- {mark} -->(.*?)<!-- /{mark} -->", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert shown
    assert shown[1].strip() == table, f"run python docs/make_tables.py and commit {page}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_and_commands_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"--benchflow-[a-z]+(?:-[a-z]+)*", page.read_text(encoding="utf-8")))
    assert named <= {option.flag for option in OPTIONS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_data_in_examples_can_be_read(page: Path) -> None:
    readers: dict[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(yaml|toml|json)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        assert readers[language](block), f"{page.name}: a block of {language} holds nothing"
