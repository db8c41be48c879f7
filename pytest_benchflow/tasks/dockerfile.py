"""Parse a Dockerfile into typed instructions, with variables replaced as a build would.

A pure function of the text and the build arguments: nothing is run, no file is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks._dockerwords import Heredoc, expand_word, heredoc_openings, split_words
from pytest_benchflow.tasks.instructions import (
    Arg,
    Command,
    Copy,
    Env,
    Expose,
    From,
    HealthcheckTest,
    Instruction,
    Label,
    Maintainer,
    Onbuild,
    Shell,
    Stopsignal,
    User,
    Volume,
    Workdir,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def parse_dockerfile(
    text: str,
    args: Mapping[str, str] | None = None,
    *,
    name: str = "Dockerfile",
    env: Mapping[str, str] | None = None,
) -> list[Instruction]:
    """Return the instructions of all stages in order; `args` are build arguments, `name` names the file in errors.

    `env` are the variables that images outside this file have, such as PATH. Raises: TaskError with file, line and
    what is allowed.
    """
    return _Parser(text, args or {}, name, env or {}).parse()


@dataclass(slots=True)
class _Raw:
    """An instruction before its text is understood."""

    line: int
    keyword: str
    text: str
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def head(self) -> dict[str, Any]:
        """Return what every instruction has."""
        return {"line": self.line, "keyword": self.keyword, "text": self.text}


class _Parser:
    """Hold what a build would know while it reads: arguments and variables of the stage."""

    def __init__(self, text: str, args: Mapping[str, str], name: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.image_env = env
        self.given = args
        self.lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
        self.position = 0
        self.escape = "\\"
        self.global_args: dict[str, str] = {}
        self.scope: dict[str, str] = {}
        self.env_names: set[str] = set()
        self.stage: dict[str, str] = {}
        self.stages: dict[str, dict[str, str]] = {}
        self.in_stage = False

    def parse(self) -> list[Instruction]:
        self._directives()
        found: list[Instruction] = []
        while (raw := self._next()) is not None:
            instruction = self._understand(raw)
            self._remember(instruction)
            found.append(instruction)
        if not any(isinstance(instruction, From) for instruction in found):
            raise TaskError(f"{self.name}: there is no FROM; a Dockerfile begins with FROM and the name of an image")
        return found

    def _fail(self, line: int, message: str) -> TaskError:
        return TaskError(f"{self.name}:{line}: {message}")

    def _directives(self) -> None:
        while self.position < len(self.lines):
            match = re.match(r"#\s*(syntax|escape|check)\s*=\s*(\S.*?)\s*\Z", self.lines[self.position], re.IGNORECASE)
            if match is None:
                return
            if match[1].lower() == "escape":
                if match[2] not in ("\\", "`"):
                    raise self._fail(self.position + 1, f"escape is {match[2]!r}; it takes \\ or `")
                self.escape = match[2]
            self.position += 1

    def _next(self) -> _Raw | None:
        """Read one instruction with its continued lines and heredocs."""
        while self.position < len(self.lines) and _is_blank(self.lines[self.position]):
            self.position += 1
        if self.position >= len(self.lines):
            return None
        start = self.position + 1
        keyword, _, text = self._logical_line().strip().partition(" ")
        keyword, tab, rest = keyword.partition("\t")
        text = (rest + " " + text if tab else text).strip()
        keyword = keyword.upper()
        if keyword not in _READERS:
            raise self._fail(start, f"{keyword[:40]!r} is no instruction; allowed: {', '.join(sorted(_READERS))}")
        heredocs: tuple[Heredoc, ...] = ()
        if keyword in ("RUN", "COPY", "ADD") and "<<" in text:
            heredocs = tuple(self._heredocs(start, text))
        return _Raw(start, keyword, text, heredocs)

    def _logical_line(self) -> str:
        continued = re.compile(r"(?:^|(?<=[^{0}])){0}[ \t]*\Z".format(re.escape(self.escape)))
        parts: list[str] = []
        while self.position < len(self.lines):
            line = self.lines[self.position]
            self.position += 1
            # Comments and empty lines between continued lines belong to no instruction.
            if parts and _is_blank(line):
                continue
            match = continued.search(line)
            if match is None:
                parts.append(line)
                break
            parts.append(line[: match.start()])
        return "".join(parts)

    def _heredocs(self, start: int, text: str) -> list[Heredoc]:
        found: list[Heredoc] = []
        for opening in heredoc_openings(text, self.escape):
            lines: list[str] = []
            position = self.position
            while position < len(self.lines):
                line = self.lines[position].lstrip("\t") if opening.strip_tabs else self.lines[position]
                position += 1
                if line == opening.name:
                    break
                lines.append(line)
            else:
                if opening.certain:
                    raise self._fail(
                        start, f"the heredoc <<{opening.name} never ends; a line {opening.name} must follow"
                    )
                continue
            self.position = position
            found.append(Heredoc(opening.name, "".join(line + "\n" for line in lines), expand=not opening.quoted))
        return found

    def _word(self, raw: _Raw, word: str, scope: Mapping[str, str] | None = None, *, quotes: bool = True) -> str:
        try:
            return expand_word(word, self.scope if scope is None else scope, self.escape, quotes=quotes)
        except ValueError as error:
            raise self._fail(raw.line, f"{raw.keyword}: {error}") from None

    def _words(self, raw: _Raw, text: str) -> list[str]:
        try:
            return split_words(text, self.escape)
        except ValueError as error:
            raise self._fail(raw.line, f"{raw.keyword}: {error}") from None

    def _understand(self, raw: _Raw) -> Instruction:
        if not raw.text:
            raise self._fail(raw.line, f"{raw.keyword} stands alone; it needs an argument")
        if not self.in_stage and raw.keyword not in ("FROM", "ARG"):
            raise self._fail(raw.line, f"{raw.keyword} comes before FROM; only ARG may")
        try:
            return _READERS[raw.keyword](self, raw)
        except RecursionError:
            raise self._fail(raw.line, f"{raw.keyword} is nested too deeply; use fewer levels of [ or ${{") from None

    def _remember(self, instruction: Instruction) -> None:
        """Keep what later instructions see: variables win over arguments, a stage inherits those it is built on."""
        if isinstance(instruction, From):
            self.in_stage = True
            self.scope = dict(self.stages.get(instruction.image.lower(), self.image_env))
            self.env_names = set(self.scope)
            self.stage = {**self.scope}
            if instruction.alias:
                self.stages[instruction.alias.lower()] = self.stage
        elif isinstance(instruction, Env):
            self.scope.update(instruction.values)
            self.stage.update(instruction.values)
            self.env_names.update(instruction.values)
        elif isinstance(instruction, Arg):
            scope = self.scope if self.in_stage else self.global_args
            for name, value in instruction.values.items():
                if value is not None and not (self.in_stage and name in self.env_names):
                    scope[name] = value

    # One reader for each keyword follows.

    def _flags(self, raw: _Raw) -> tuple[list[tuple[str, str]], str]:
        """Split leading --flag[=value] words off; values are replaced."""
        flags: list[tuple[str, str]] = []
        rest = raw.text
        while match := re.match(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|\Z)", rest):
            flags.append((match[1], self._word(raw, match[2] or "")))
            rest = rest[match.end() :]
        return flags, rest

    def _from(self, raw: _Raw) -> Instruction:
        scope = {**self.given, **self.global_args}
        platform = None
        words = raw.text.split()
        if words and words[0].startswith("--platform="):
            platform = self._word(raw, words.pop(0).partition("=")[2], scope)
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise self._fail(raw.line, f"FROM {raw.text}; allowed: FROM [--platform=…] image [AS name]")
        image = self._word(raw, words[0], scope)
        if not image:
            raise self._fail(raw.line, f"FROM {words[0]} names no image; give the argument a value")
        alias = words[2] if len(words) == 3 else None
        return From(**raw.head, image=image, alias=alias, platform=platform)

    def _copy(self, raw: _Raw) -> Instruction:
        flags, rest = self._flags(raw)
        words = _json_list(rest)
        if words is None:
            words = self._words(raw, rest)
        bodies = {heredoc.name: heredoc for heredoc in raw.heredocs}
        plain = [word for word in words if not (bodies and re.match(r"\d*<<", word))]
        if not plain or len(plain) + len(bodies) < 2:
            raise self._fail(raw.line, f"{raw.keyword} {raw.text}; it needs at least one source and a target")
        named = {key: value for key, value in flags if key != "exclude"}
        heredocs = tuple(
            replace(doc, text=self._word(raw, doc.text, quotes=False)) if doc.expand else doc for doc in raw.heredocs
        )
        replaced = [self._word(raw, word) for word in plain]
        return Copy(
            **raw.head,
            sources=tuple(replaced[:-1]),
            target=replaced[-1],
            heredocs=heredocs,
            chown=named.pop("chown", None),
            chmod=named.pop("chmod", None),
            from_stage=named.pop("from", None),
            exclude=tuple(value for key, value in flags if key == "exclude"),
            flags=named,
        )

    def _command(self, raw: _Raw) -> Command:
        rest = raw.text
        flags: list[str] = []
        while raw.keyword == "RUN" and (match := re.match(r"(--[a-z]+(?:=\S*)?)\s+", rest)):
            flags.append(match[1])
            rest = rest[match.end() :]
        argv = _json_list(rest)
        return Command(
            **raw.head,
            argv=None if argv is None else tuple(argv),
            shell=rest if argv is None else None,
            heredocs=raw.heredocs,
            flags=tuple(flags),
        )

    def _pairs(self, raw: _Raw) -> dict[str, str]:
        words = self._words(raw, raw.text)
        if "=" not in words[0]:
            value = raw.text[len(words[0]) :].strip()
            if not value:
                raise self._fail(raw.line, f"{raw.keyword} {raw.text}; allowed: {raw.keyword} NAME=value …")
            return {self._word(raw, words[0]): self._word(raw, value)}
        # All values of one line see the variables as they were before it.
        scope = dict(self.scope)
        found: dict[str, str] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or not name:
                raise self._fail(raw.line, f"{raw.keyword}: {word!r} is no NAME=value; quote values that hold spaces")
            found[self._word(raw, name, scope)] = self._word(raw, value, scope)
        return found

    def _env(self, raw: _Raw) -> Instruction:
        return Env(**raw.head, values=self._pairs(raw))

    def _label(self, raw: _Raw) -> Instruction:
        return Label(**raw.head, values=self._pairs(raw))

    def _arg(self, raw: _Raw) -> Instruction:
        scope = dict(self.scope) if self.in_stage else {**self.global_args}
        values: dict[str, str | None] = {}
        for word in self._words(raw, raw.text):
            name, equals, default = word.partition("=")
            value = self._word(raw, default, scope) if equals else self.global_args.get(name) if self.in_stage else None
            values[name] = self.given.get(name, value)
            if values[name] is not None:
                scope[name] = str(values[name])
        return Arg(**raw.head, values=values)

    def _workdir(self, raw: _Raw) -> Instruction:
        return Workdir(**raw.head, path=self._word(raw, raw.text))

    def _user(self, raw: _Raw) -> Instruction:
        return User(**raw.head, user=self._word(raw, raw.text))

    def _expose(self, raw: _Raw) -> Instruction:
        ports = tuple(self._word(raw, word) for word in self._words(raw, raw.text))
        return Expose(**raw.head, ports=ports)

    def _volume(self, raw: _Raw) -> Instruction:
        words = _json_list(raw.text)
        paths = tuple(self._word(raw, word) for word in (self._words(raw, raw.text) if words is None else words))
        return Volume(**raw.head, paths=paths)

    def _shell(self, raw: _Raw) -> Instruction:
        argv = _json_list(raw.text)
        if not argv:
            raise self._fail(raw.line, f'SHELL {raw.text}; allowed: a JSON list such as ["/bin/bash", "-c"]')
        return Shell(**raw.head, argv=tuple(argv))

    def _healthcheck(self, raw: _Raw) -> Instruction:
        flags, rest = self._flags(raw)
        kind, _, command = rest.partition(" ")
        if kind.upper() not in ("CMD", "NONE") or (kind.upper() == "CMD" and not command.strip()):
            raise self._fail(raw.line, f"HEALTHCHECK {raw.text}; allowed: HEALTHCHECK [--flags] CMD command, or NONE")
        probe = self._command(_Raw(raw.line, "CMD", command.strip())) if kind.upper() == "CMD" else None
        return HealthcheckTest(**raw.head, command=probe, flags=dict(flags))

    def _stopsignal(self, raw: _Raw) -> Instruction:
        return Stopsignal(**raw.head, signal=self._word(raw, raw.text))

    def _onbuild(self, raw: _Raw) -> Instruction:
        keyword, _, text = raw.text.partition(" ")
        if keyword.upper() in ("ONBUILD", "FROM", "MAINTAINER") or keyword.upper() not in _READERS:
            raise self._fail(raw.line, f"ONBUILD {raw.text}; allowed: any instruction but ONBUILD, FROM and MAINTAINER")
        inner = Instruction(line=raw.line, keyword=keyword.upper(), text=text.strip())
        return Onbuild(**raw.head, instruction=inner)

    def _maintainer(self, raw: _Raw) -> Instruction:
        return Maintainer(**raw.head, name=raw.text)


_READERS: Mapping[str, Callable[[_Parser, _Raw], Instruction]] = {
    "ADD": _Parser._copy,
    "ARG": _Parser._arg,
    "CMD": _Parser._command,
    "COPY": _Parser._copy,
    "ENTRYPOINT": _Parser._command,
    "ENV": _Parser._env,
    "EXPOSE": _Parser._expose,
    "FROM": _Parser._from,
    "HEALTHCHECK": _Parser._healthcheck,
    "LABEL": _Parser._label,
    "MAINTAINER": _Parser._maintainer,
    "ONBUILD": _Parser._onbuild,
    "RUN": _Parser._command,
    "SHELL": _Parser._shell,
    "STOPSIGNAL": _Parser._stopsignal,
    "USER": _Parser._user,
    "VOLUME": _Parser._volume,
    "WORKDIR": _Parser._workdir,
}


def _is_blank(line: str) -> bool:
    stripped = line.strip()
    return not stripped or stripped.startswith("#")


def _json_list(text: str) -> list[str] | None:
    """Return the list of the JSON form, None when the text is not one (then it is the shell form)."""
    if not text.startswith("["):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None
