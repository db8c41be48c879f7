"""Examples of the documentation run: what a reader copies works.

A fenced block is run when its first line says so:

    ```python test [options]      a test file, run by pytest with these options
    ```python conftest            the conftest.py of the next test block
    ```python run                 a script
    ```console test               commands after `$ `, and lines that their output must hold, in order (… is any text)

Each runs in an empty directory, with those of the bundled tasks that it names below tasks/.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import LEAN

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(?P<how>(?:python|console) (?:test|conftest|run)\b[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_LIMIT_SEC = 300


@dataclass(frozen=True)
class Example:
    """One block of a page, with the conftest that belongs to it."""

    page: str
    how: str
    text: str
    conftest: str | None = None


def examples() -> Iterator[object]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        conftest: str | None = None
        for number, match in enumerate(_BLOCK.finditer(text), 1):
            if match["how"] == "python conftest":
                conftest = match["text"]
                continue
            headings = _HEADING.findall(text[: match.start()])
            slug = re.sub(r"[^a-z0-9]+", "-", headings[-1].lower() if headings else "start").strip("-")
            yield pytest.param(
                Example(page.name, match["how"], match["text"], conftest), id=f"{page.stem}-{slug}-{number}"
            )
            conftest = None


@pytest.mark.parametrize("example", list(examples()))
def test_example_works(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, example: Example) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("PYTEST_ADDOPTS", LEAN)
    for name in set(re.findall(r"\btasks/([\w-]+)", example.text + (example.conftest or ""))):
        if (ROOT / "tasks" / name).is_dir():
            shutil.copytree(ROOT / "tasks" / name, pytester.path / "tasks" / name)
    if example.conftest:
        pytester.makeconftest(example.conftest)
    language, kind, *options = shlex.split(example.how)
    if language == "console":
        follow(pytester, example.text)
        return
    script = pytester.path / ("test_example.py" if kind == "test" else "example.py")
    script.write_text(example.text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", str(script), *options] if kind == "test" else [sys.executable, script]
    done = pytester.run(*command, timeout=_LIMIT_SEC)
    assert done.ret == 0, f"{example.page}: exit code {done.ret}"
    if kind == "test":
        assert done.parseoutcomes().get("passed"), f"{example.page}: no test of the example ran"


def follow(pytester: pytest.Pytester, session: str) -> None:
    """Type the commands of a session and compare what each prints with what the page shows."""
    for block in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, shown = block.partition("\n")
        done = pytester.run(*shlex.split(command, comments=True), timeout=_LIMIT_SEC)
        assert done.ret == 0, f"{command}: exit code {done.ret}"
        printed = iter([*done.outlines, *done.errlines])
        for line in filter(None, map(str.strip, shown.splitlines())):
            wanted = re.sub(r"([\[*?])", r"[\1]", line).replace("…", "*")
            assert any(fnmatchcase(each.strip(), wanted) for each in printed), f"{command} did not print: {line}"


def test_there_are_examples() -> None:
    assert len(list(examples())) >= 5
