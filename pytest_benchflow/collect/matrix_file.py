"""Read a matrix from a TOML file: what options say, by their names, and cells to leave out or to add."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_benchflow.errors import UsageError
from pytest_benchflow.report.text import printable
from pytest_benchflow.settings import OPTIONS, SKILL_MODES, Exclude, Include

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

NAME = "benchflow.toml"

# What the file calls options that it has many of.
_MANY = {"agents": "agent", "models": "model"}
# Options that say how rollouts are made and judged; where a session looks and writes is the command line's to say.
_TAKEN = (
    *("skills", "trials", "sandbox", "ssh-host", "agent-timeout", "idle-timeout", "model-timeout", "agent-network"),
    *("agent-env", "reasoning-effort", "price", "prices", "model-concurrency", "max-cost", "concurrency", "retries"),
    *("replay-strict", "gate", "canary", "require-audit", "min-pass-rate", "max-unhealthy"),
)
_BY_NAME = {option.name: option for option in OPTIONS}
_OPTIONS = {**{key: _BY_NAME[name] for key, name in _MANY.items()}, **{n: _BY_NAME[n] for n in _TAKEN if n in _BY_NAME}}
# What an [[include]] may set otherwise for its own cells.
_NAMED = 12  # tasks that a message tells of at most
_OWN = ("reasoning-effort", "agent-timeout", "idle-timeout", "model-timeout")
_OF_EXCLUDE = ("task", "agent", "model", "skills", "trial")
_OF_INCLUDE = ("agent", "model", "task", "skills", "trials", *_OWN)
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


@dataclass(frozen=True, slots=True)
class MatrixFile:
    """What a file says; `values` are those of options, by the option's name."""

    path: Path
    shown: str  # what to call it
    values: Mapping[str, Any]
    keys: Mapping[str, str]  # what the file calls each option
    tasks: tuple[Path, ...] | None
    exclude: tuple[Exclude, ...]
    include: tuple[Include, ...]

    @property
    def all_models(self) -> tuple[str, ...]:
        """Return the models that the file names anywhere."""
        return (*self.values.get("model", ()), *(model for part in self.include for model in part.model))

    @property
    def all_agents(self) -> tuple[str, ...]:
        """Return the agents that the file names anywhere."""
        return (*self.values.get("agent", ()), *(agent for part in self.include for agent in part.agent))

    def under(self, given: Mapping[str, Any], rename: Callable[[str], str]) -> tuple[tuple[Include, ...], list[str]]:
        """Return what is included under options that were `given` on the command line, and what to say of these.

        An option counts for every cell: a part of other agents or models is left out, and its own value gives way.
        `rename` gives an agent the name it is known by.
        """
        flags = {option.name: option.flag for option in OPTIONS}
        notes = [f"{flags[name]} over the {self.keys[name]} of {self.shown}" for name in self.keys if name in given]
        kept = []
        for number, part in enumerate(self.include, 1):
            new = replace(part, agent=tuple(dict.fromkeys(map(rename, part.agent))))
            for name in ("agent", "model"):
                own = getattr(new, name)
                if name in given and own:
                    asked = {rename(value) for value in given[name]} if name == "agent" else set(given[name])
                    narrowed: dict[str, Any] = {name: tuple(value for value in own if value in asked)}
                    new = replace(new, **narrowed)
                    if not getattr(new, name):
                        notes.append(f"{flags[name]} leaves include {number} of {self.shown} out")
                        break
            else:
                for name in ("skills", "trials", *_OWN):
                    field = name.replace("-", "_")
                    if name in given and getattr(new, field) is not None:
                        notes.append(f"{flags[name]} over the {name} of include {number} of {self.shown}")
                        dropped: dict[str, Any] = {field: None}
                        new = replace(new, **dropped)
                kept.append(new)
        return tuple(kept), list(dict.fromkeys(notes))

    def check_patterns(self, agents: Iterable[str], models: Iterable[str]) -> None:
        """Refuse patterns of [[exclude]] that no agent or model fits. Raises: UsageError."""
        known = {"agent": dict.fromkeys(agents), "model": dict.fromkeys((*models, "none")), "skills": SKILL_MODES[:3]}
        for number, rule in enumerate(self.exclude, 1):
            for name, values in known.items():
                for pattern in getattr(rule, name):
                    if not any(fnmatchcase(value, pattern) for value in values):
                        raise UsageError(
                            f"{self.shown}: {name} of exclude {number} is {pattern!r}, which fits none of: "
                            f"{', '.join(values)}"
                        )

    @property
    def names_tasks(self) -> bool:
        """Tell whether the file says of tasks what it leaves out or includes."""
        return any(patterns for _, _, patterns in self._task_patterns())

    def check_tasks(self, known: Collection[str]) -> None:
        """Refuse patterns of tasks that none of the file's own fits. Raises: UsageError."""
        for kind, number, patterns in self._task_patterns():
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for name in known):
                    near = difflib.get_close_matches(pattern, known, n=3) or list(known)[:_NAMED]
                    raise UsageError(
                        f"{self.shown}: task of {kind} {number} is {pattern!r}, which fits no task of this session; "
                        f"there are {', '.join(near)}"
                    )

    def _task_patterns(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        for number, rule in enumerate(self.exclude, 1):
            yield "exclude", number, rule.task
        for number, part in enumerate(self.include, 1):
            yield "include", number, part.task


_MATRIX: pytest.StashKey[MatrixFile | None] = pytest.StashKey()


def matrix_of(config: pytest.Config) -> MatrixFile | None:
    """Return the matrix that the command line or the ini file names, read once; none is found by itself.

    The command line's is relative to where pytest starts, the ini file's to the root directory.
    Raises: pytest.UsageError.
    """
    if _MATRIX not in config.stash:
        known = getattr(config, "known_args_namespace", config.option)
        given = getattr(known, "benchflow_matrix", None)
        named = config.getini("benchflow_matrix") if given is None else given
        place = (config.rootpath if given is None else config.invocation_params.dir) / (named or "")
        if given == "":
            raise pytest.UsageError("--benchflow-matrix is ''; it takes a TOML file")
        try:
            config.stash[_MATRIX] = read_matrix(place, named) if named else None
        except UsageError as error:
            raise pytest.UsageError(printable(error)) from None
    return config.stash[_MATRIX]


def read_matrix(path: Path, shown: str) -> MatrixFile:
    """Return what the file says. Raises: UsageError naming file, key, what came and what is allowed."""
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read ({error.strerror}); --benchflow-matrix takes a TOML file") from None
    except ValueError as error:
        raise UsageError(f"{shown}: is no TOML ({error})") from None
    _check_keys(data, (*_OPTIONS, "tasks", "exclude", "include"), shown)
    values, keys = {}, {}
    for key in (name for name in data if name in _OPTIONS):
        option = _OPTIONS[key]
        values[option.name] = _typed(option.kind, data[key], f"{shown}: {key}", option.choices)
        keys[option.name] = key
    if "prices" in values:
        values["prices"] = str(path.parent / values["prices"])
    exclude = [_exclude(table, f"{shown}: exclude {number}") for number, table in _tables(data, "exclude", shown)]
    include = [_include(table, f"{shown}: include {number}") for number, table in _tables(data, "include", shown)]
    return MatrixFile(path, shown, values, keys, _tasks(data, path, shown), tuple(exclude), tuple(include))


def _tasks(data: Mapping[str, Any], path: Path, shown: str) -> tuple[Path, ...] | None:
    if "tasks" not in data:
        return None
    named = [path.parent / name for name in _texts(data["tasks"], f"{shown}: tasks")]
    for directory in named:
        if not directory.is_dir():
            raise UsageError(
                f"{shown}: tasks names {directory}, which is no directory; name directories of tasks, relative to the "
                "file"
            )
    return tuple(named)


def _tables(data: Mapping[str, Any], name: str, shown: str) -> Iterable[tuple[int, dict[str, Any]]]:
    tables = data.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{shown}: {name} is {tables!r}; it takes tables, each headed by [[{name}]]")
    return enumerate(tables, 1)


def _exclude(table: dict[str, Any], place: str) -> Exclude:
    _check_keys(table, _OF_EXCLUDE, place)
    if not table:
        raise UsageError(f"{place} is empty and would leave everything out; it takes {', '.join(_OF_EXCLUDE)}")
    patterns = {name: _one_or_many(table[name], f"{place}: {name}") for name in table if name != "trial"}
    trials = table.get("trial", [])
    trials = trials if isinstance(trials, list) else [trials]
    for trial in trials:
        if type(trial) is not int or trial < 1:
            _refuse(f"{place}: trial", trial, "whole numbers of at least 1")
    return Exclude(**patterns, trial=tuple(trials))


def _include(table: dict[str, Any], place: str) -> Include:
    _check_keys(table, _OF_INCLUDE, place)
    if "agent" not in table:
        raise UsageError(f"{place} names no agent; it takes agent, and beside it {', '.join(_OF_INCLUDE[1:])}")
    lists: dict[str, Any] = {
        name: _one_or_many(table[name], f"{place}: {name}") for name in ("agent", "model", "task") if name in table
    }
    own: dict[str, Any] = {
        name.replace("-", "_"): _typed(_BY_NAME[name].kind, table[name], f"{place}: {name}", _BY_NAME[name].choices)
        for name in ("skills", "trials", *_OWN)
        if name in table
    }
    for name, value in own.items():
        if name == "trials" and value < 1:
            _refuse(f"{place}: trials", value, "a whole number of at least 1")
        if name.endswith("timeout") and not 0 < value < float("inf"):
            _refuse(f"{place}: {name.replace('_', '-')}", value, "a number of seconds above 0")
    return Include(**lists, **own)


def _check_keys(table: Mapping[str, Any], allowed: Collection[str], place: str) -> None:
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key.replace("_", "-"), allowed, n=1)
            meant = f"; {near[0]} is near it" if near else ""
            raise UsageError(f"{place}: {key} is no key; it takes {', '.join(sorted(allowed))}{meant}")


def _typed(kind: str, value: Any, place: str, choices: tuple[str, ...]) -> Any:
    if kind == "list":
        return _texts(value, place)
    types: Any
    types, noun = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
        _refuse(place, value, f"one of: {', '.join(choices)}" if choices else noun)
    if choices and value not in choices:
        _refuse(place, value, f"one of: {', '.join(choices)}")
    if kind == "str" and not value:
        _refuse(place, value, noun)
    return float(value) if kind == "float" else value


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        _refuse(place, value, "a list of texts, at least one")
    return tuple(value)


def _one_or_many(value: Any, place: str) -> tuple[str, ...]:
    return _texts([value] if isinstance(value, str) else value, place)


def _refuse(place: str, value: Any, accepted: str) -> NoReturn:
    raise UsageError(f"{place} is {value!r}; it takes {accepted}")
