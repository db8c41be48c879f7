"""Read the document layout: one task.md (YAML front matter and prompt), with verifier/ and oracle/ beside it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks._reader import Reader
from pytest_benchflow.tasks.harbor import Layout, build_task, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.tasks.task import Task

# Packages written before the form had directories of its own keep Harbor's, and their scripts expect Harbor's places.
DOCUMENT = Layout(
    "document",
    (("verifier", "/verifier"), ("tests", "/tests")),
    (("oracle", "/oracle"), ("solution", "/solution")),
)
_RENAMED = {"sandbox": "environment", "oracle": "solution"}
_RENAMED_IN_VERIFIER = {"sandbox": "environment", "sandbox_mode": "environment_mode"}
_FOR_SCENES = ("agents", "scenes", "user", "benchflow")
_SECTION = re.compile(r"^##[ \t]+(prompt|role:[\w.-]+|scene:[\w.-]+|user-persona)[ \t]*$", re.IGNORECASE | re.MULTILINE)


def load_document(path: Path) -> Task:
    """Read the task directory `path` by its task.md. Raises: TaskError naming file, key and what is allowed."""
    reader = Reader(path / "task.md")
    front, body = _split(reader, read_text(reader.file, reader.label))
    data = _as_harbor(reader, _parse_yaml(reader, front))
    prompt = _prompt(body)
    if not prompt.strip() and not data.get("steps"):
        raise TaskError(f"{reader.label}: the prompt is empty; write below the front matter what the agent is to do")
    return build_task(reader, data, DOCUMENT, prompt)


def _split(reader: Reader, text: str) -> tuple[str, str]:
    """Return front matter and body."""
    match = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", text, re.DOTALL | re.MULTILINE)
    if match is None:
        raise TaskError(
            f"{reader.label}: there is no front matter; allowed: YAML between two lines ---, then the prompt"
        )
    return match[1], text[match.end() :]


def _parse_yaml(reader: Reader, front: str) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(front, Loader=loader)  # noqa: S506 - a safe loader, in C where there is one
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also a date such as 2024-13-40
        mark = getattr(error, "problem_mark", None)
        # The front matter begins on the file's second line.
        where = f" at line {mark.line + 2}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise TaskError(
            f"{reader.label}: the front matter is not valid YAML{where}: {problem}; allowed: keys and values"
        ) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise TaskError(f"{reader.label}: the front matter is a {type(data).__name__}; allowed: keys and values")
    return data


def _as_harbor(reader: Reader, data: dict[str, Any]) -> dict[str, Any]:
    """Return the front matter with Harbor's names, which both forms share from here on."""
    table = _rename(reader, "", data, _RENAMED)
    for key in _FOR_SCENES:
        if table.pop(key, None) is not None:
            reader.warn(
                f"{key} is not used: scenes, roles and simulated users are not played, one agent gets the prompt"
            )
    if isinstance(table.get("verifier"), dict):
        table["verifier"] = _rename(reader, "verifier.", table["verifier"], _RENAMED_IN_VERIFIER)
    if isinstance(table.get("steps"), list):
        table["steps"] = [_step(reader, index, step) for index, step in enumerate(table["steps"])]
    return table


def _step(reader: Reader, index: int, step: Any) -> Any:
    if not isinstance(step, dict) or not isinstance(step.get("verifier"), dict):
        return step
    return {**step, "verifier": _rename(reader, f"steps[{index}].verifier.", step["verifier"], _RENAMED_IN_VERIFIER)}


def _rename(reader: Reader, prefix: str, table: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    for ours, harbors in names.items():
        if ours in table and harbors in table:
            raise reader.error(
                f"{prefix}{harbors}", f"says the same as {prefix}{ours}", f"one of the two; keep {prefix}{ours}"
            )
    return {names.get(key, key): value for key, value in table.items()}


def _prompt(body: str) -> str:
    """Return what the agent is told: the section `## prompt`, else what comes before the first section of its kind."""
    sections = list(_SECTION.finditer(body))
    for index, match in enumerate(sections):
        if match[1].lower() == "prompt":
            end = sections[index + 1].start() if index + 1 < len(sections) else len(body)
            return _unescaped(body[match.end() : end])
    return _unescaped(body[: sections[0].start()] if sections else body)


def _unescaped(text: str) -> str:
    """Take the backslash from a heading that is meant as text of the prompt."""
    lines = (
        line[1:] if line.startswith("\\##") and _SECTION.match(line[1:]) else line for line in text.strip().split("\n")
    )
    return "\n".join(lines) + "\n"
