"""Name the directory of a rollout in a dataset repository, by a template with named fields."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_benchflow.errors import UsageError
from pytest_benchflow.rollout.config import slug

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT = "progress/{dataset}/{model}__{agent}-{effort}/{canaries}/{skills}/{task}__{id8}"
FIELDS = {
    "dataset": "--dataset, else the directory that the task lies in",
    "model": "the model's name",
    "agent": "the agent's name",
    "agent_version": "the agent's version",
    "effort": "the reasoning effort, `default` where none was asked for",
    "canaries": "`canaries` for a canary, else nothing; a part of the path on its own",
    "skills": "with-skill or no-skill",
    "task": "the task's name",
    "trial": "the number of the trial",
    "job": "the job's name",
    "id8": "8 digits of the rollout's id, the SHA-256 of its raw trace",
}
_CANARIES = "{canaries}"
_PLAIN = re.compile(r"[A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Template:
    """A checked template; `parts` are those between its slashes."""

    parts: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Return the template of a text. Raises: UsageError naming the fields there are."""
        parts = tuple(text.split("/"))
        for part in parts:
            _check(part, text)
        if "{id8}" not in text:
            raise UsageError(f"--path-template {text!r} has no {{id8}}, which keeps rollouts of one task apart")
        return cls(parts)

    @property
    def parts_canaries(self) -> bool:
        """Tell whether canaries go to a directory of their own."""
        return _CANARIES in self.parts

    def path(self, fields: Mapping[str, str]) -> str:
        """Return the path of a rollout: each field as a slug, so that none adds or leaves a directory."""
        slugs = {name: slug(fields[name]) for name in FIELDS if name != "canaries"}
        filled = (fields["canaries"] if part == _CANARIES else part.format(**slugs) for part in self.parts)
        return "/".join(part for part in filled if part)

    def base(self, dataset: str | None) -> str:
        """Return the directory that all rollouts of a dataset are below, "" for the whole repository."""
        found = []
        for part in self.parts:
            if _fields(part) - ({"dataset"} if dataset else set()):
                break
            found.append(part.format(dataset=slug(dataset)) if dataset else part)
        return "/".join(found)


def _fields(part: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(part) if name is not None}


def _check(part: str, text: str) -> None:
    said = f"--path-template {text!r}"
    known = ", ".join(f"{{{name}}}" for name in FIELDS)
    try:
        pieces = list(string.Formatter().parse(part))
    except ValueError as error:
        raise UsageError(f"{said}: {error}; it takes the fields {known}") from None
    for literal, name, shape, conversion in pieces:
        if not _PLAIN.fullmatch(literal):
            raise UsageError(f"{said}: {literal!r} is not taken; a path has letters, digits, '.', '_', '-' and fields")
        if name is not None and name not in FIELDS:
            raise UsageError(f"{said}: there is no field {{{name}}}; it takes {known}")
        if shape or conversion:
            raise UsageError(f"{said}: a field is its name alone, as in {{{name}}}, without '!' or ':' after it")
    if "{canaries}" in part and part != _CANARIES:
        raise UsageError(f"{said}: {{canaries}} stands between slashes, since it is empty for most rollouts")
    if not part or part.startswith("."):
        raise UsageError(f"{said}: {part or 'an empty part'} is no name of a directory; a part begins with a letter")
