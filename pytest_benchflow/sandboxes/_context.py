"""Choose files of a Docker build context: .dockerignore and the sources of COPY."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from pytest_benchflow.errors import TaskError

if TYPE_CHECKING:
    from pathlib import Path


class Ignore:
    """The rules of a .dockerignore: the last that matches a path or a directory above it decides."""

    def __init__(self, patterns: list[str]) -> None:
        self._rules: list[tuple[re.Pattern[str], bool]] = []
        for line in patterns:
            pattern = line.strip()
            if not pattern or pattern.startswith("#"):
                continue
            kept = pattern.startswith("!")
            self._rules.append((_compile(pattern.removeprefix("!").strip()), kept))

    def keeps(self, path: str) -> bool:
        """Tell whether `path`, relative to the context, takes part in the build."""
        kept = True
        for rule, keeps in self._rules:
            if rule.fullmatch(path):
                kept = keeps
        return kept


def read_ignore(context: Path, dockerfile: Path) -> Ignore:
    """Read the rules of a context: the Dockerfile's own file wins over .dockerignore."""
    for path in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), context / ".dockerignore"):
        if path.is_file():
            return Ignore(path.read_text(errors="replace").splitlines())
    return Ignore([])


def _compile(pattern: str) -> re.Pattern[str]:
    pattern = os.path.normpath(pattern).strip("/")
    parts = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|\[[^]]+\]|\\?.", pattern, re.DOTALL)
    expression = "".join(
        parts.get(token) or (token.replace("[!", "[^") if len(token) > 2 and token[0] == "[" else re.escape(token[-1]))
        for token in tokens
    )
    return re.compile(f"{expression}(?:/.*)?", re.DOTALL)


def find_sources(context: Path, pattern: str, where: str) -> list[Path]:
    """Return what a COPY source names, sorted; links at its end are followed within the context.

    Raises: TaskError when nothing is there, or it lies outside the context.
    """
    relative = os.path.normpath(pattern.lstrip("/") or ".")
    if relative == ".." or relative.startswith("../"):
        raise TaskError(f"{where}: {pattern} lies outside the build context {context}; copy the files into it")
    found = sorted(context.glob(relative)) if re.search(r"[*?\[]", relative) else [context / relative]
    sources = [path.resolve() for path in found if path.exists()]
    if not sources:
        raise TaskError(f"{where}: nothing in the build context {context} matches {pattern}")
    for path, original in zip(sources, found, strict=False):
        if not path.is_relative_to(context.resolve()):
            raise TaskError(f"{where}: {original} leads out of the build context {context}; copy the files into it")
    return sources
