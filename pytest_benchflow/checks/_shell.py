"""Read shell commands as far as a review needs: which files they read and write, and which programs they run.

Nothing is executed. What cannot be read, such as a name that is computed, is left out and never guessed.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing a command does; `path` is absolute where the directory is known, else as it was written.

    A `write` has the text it writes in `content` and a copy's or link's origin in `source`, where they can be seen.
    A `run` has its words, a `code` the program text that an interpreter is given in `content`.
    """

    kind: Literal["read", "write", "run", "code"]
    program: str
    path: str = ""
    content: str | None = None
    source: str | None = None
    words: tuple[str, ...] = ()


@dataclass(slots=True)
class _Command:
    words: list[str] = field(default_factory=list)
    redirects: list[tuple[str, str]] = field(default_factory=list)
    heredoc: str | None = None
    piped: bool = False  # its output is the next command's input
    nesting: int = 0


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HEREDOC = re.compile(r"(?<!<)<<-?(?!<)[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([A-Za-z_][\w.-]*))")
_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r]|\\\n)+)"
    r"|(?P<comment>#[^\n]*)"
    r"|(?P<redirect>\d*(?:>>|>\||>&|<<<|<&|<>|>|<)|&>>?)"
    r"|(?P<end>&&|\|\|?&?|;;?|&|\n|\(|\)|`)"
    r"|(?P<word>(?:\$\((?:[^()]|\([^()]{0,500}\)){0,2000}\)|\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|[^\s'\"\\|&;()<>`]|['\"\\])+)",
    re.DOTALL,
)
_PIECE = re.compile(r"\\(.)|'([^']*)'|\"((?:\\.|[^\"\\])*)\"|(.)", re.DOTALL)
_INNER = re.compile(r"\$\(((?:[^()]|\([^()]*\))*)\)|`([^`]*)`")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Words before a command that leave it what it is; some take one value or more of their own.
_BEFORE = _words("then do else if elif while until ! { time sudo exec command builtin nohup env nice stdbuf setsid")
_WITH_VALUE = {"timeout": 1, "chroot": 1, "taskset": 1, "flock": 1}
_SHELLS = _words("sh bash dash zsh ksh ash busybox")
# They run later what they are given, which may begin with the times.
_SCHEDULERS = _words("crontab at batch")
_SCHEDULE = re.compile(r"^[ \t]*(?:(?:[\d*/,-]+[ \t]+){5}|@\w+[ \t]+)", re.MULTILINE)
_GROUP_PIPED = re.compile(r"\s*\|(?!\|)")
# They name files and do not open them, or say something about them only.
_LOOKING = _words(
    "ls cd pushd popd echo printf test [ [[ stat file which type whereis find mkdir du df dirname basename "
    "realpath readlink export set unset declare local return exit true false tree pwd sleep wait kill alias hash "
    "id whoami for case select function let shift trap ulimit umask git lsattr getfacl mountpoint fi done esac"
)
_CHANGING = _words(
    "tee rm rmdir unlink shred truncate touch chmod chown chgrp chattr mkfifo mknod sponge patch mount umount"
)
_COPYING = _words("cp mv install ln rsync scp")
# Their first word is a pattern or a program of their own.
_PATTERN_FIRST = _words("grep egrep fgrep rg ag ack sed awk gawk mawk jq perl")
_INTERPRETERS = re.compile(r"(?:python|pypy|perl|ruby|node|nodejs|php|deno|bun)[\d.]*\Z")
_DEPTH = 6
_LONGEST_VALUE = 4096


def operations(command: str, cwd: str | None = None) -> list[Operation]:
    """Return what a command line or a script of POSIX sh would do, in its order."""
    return list(_Reader(cwd).read(command))


class _Reader:
    """Follows one script: its directory and its variables."""

    def __init__(self, cwd: str | None, depth: int = 0) -> None:
        self._cwd = cwd
        self._depth = depth
        self._variables: dict[str, str] = {}

    def read(self, script: str) -> Iterator[Operation]:
        if self._depth > _DEPTH:
            return
        before: list[Operation] = []
        said: str | None = None
        directories: list[str | None] = []
        for command in _commands(script):
            if command.heredoc is None:
                command.heredoc = said
            while len(directories) < command.nesting:
                directories.append(self._cwd)
            while len(directories) > command.nesting:
                self._cwd = directories.pop()
            done = list(self._simple(command, before))
            yield from done
            before = done if command.piped else []
            said = _said(self._expanded(command.words), command) if command.piped else None

    def _simple(self, command: _Command, before: list[Operation]) -> Iterator[Operation]:
        inner = list(self._inner(command.words))
        yield from inner
        words = self._expanded(command.words)
        content = _said(words, command)
        yield from self._redirects(command, words[0] if words else "", content)
        if not words:
            return
        program, arguments = posixpath.basename(words[0]), [*words[1:], *_found(inner)]
        yield Operation("run", program, words=tuple(words))
        if "/" in words[0]:
            yield Operation("read", program, self._path(words[0]))
        if program in ("cd", "pushd") and arguments:
            self._cwd = self._path(arguments[-1]) if arguments[-1] != "-" else None
        elif program == "for" and "in" in arguments:
            self._let(arguments[0], " ".join(arguments[arguments.index("in") + 1 :]))
        elif program in _SHELLS or program == "eval":
            yield from self._shell(program, arguments, command)
        elif program == "trap" and arguments:
            yield from _Reader(self._cwd, self._depth + 1).read(arguments[0])
        elif program in _SCHEDULERS and command.heredoc is not None:
            yield from _Reader(self._cwd, self._depth + 1).read(_SCHEDULE.sub("", command.heredoc))
        elif program == "xargs":
            yield from self._each(arguments, before)
        elif program == "find":
            yield from self._find(arguments)
        elif _INTERPRETERS.match(program) and (code := _code(arguments, command)) is not None:
            yield Operation("code", program, content=code)
        else:
            yield from self._files(program, arguments, content)

    def _inner(self, words: list[str]) -> Iterator[Operation]:
        """Read what stands in command substitutions."""
        for word in words:
            for match in _INNER.finditer(word) if "$(" in word or "`" in word else ():
                yield from _Reader(self._cwd, self._depth + 1).read(match.group(1) or match.group(2) or "")

    def _redirects(self, command: _Command, program: str, content: str | None) -> Iterator[Operation]:
        for sign, target in command.redirects:
            path = self._path(self._expand(_unquoted(target)))
            if ">" in sign and not sign.endswith("&"):
                yield Operation("write", program, path, content=content)
            elif sign == "<":
                yield Operation("read", program, path)

    def _shell(self, program: str, arguments: list[str], command: _Command) -> Iterator[Operation]:
        """Read what a shell is given: after -c, on its input, or in a file."""
        option = next((n for n, word in enumerate(arguments) if re.fullmatch(r"-[a-z]*c", word)), None)
        script = " ".join(arguments) if program == "eval" else None
        if option is not None and option + 1 < len(arguments):
            script = arguments[option + 1]
        elif script is None and command.heredoc is not None:
            script = command.heredoc
        if script is not None:
            inner = _Reader(self._cwd, self._depth + 1)
            inner._variables.update(self._variables)
            yield from inner.read(script)
            return
        for word in arguments:
            if not word.startswith("-"):
                yield Operation("read", program, self._path(word))
                break

    def _each(self, arguments: list[str], before: list[Operation]) -> Iterator[Operation]:
        """Read `xargs PROGRAM`: the files are those that the command before it names."""
        words = [word for word in arguments if not word.startswith("-")]
        named = _found(before)
        for operation in before:
            named += [w for w in operation.words[1:] if not w.startswith("-")] if operation.program != "find" else []
        if words:
            yield from self._files(posixpath.basename(words[0]), [*words[1:], *named], None)

    def _find(self, arguments: list[str]) -> Iterator[Operation]:
        roots = _searched(arguments)
        if "-delete" in arguments:
            yield from (Operation("write", "find", self._path(root)) for root in roots)
        for option in ("-exec", "-execdir", "-ok"):
            if option in arguments:
                words = [word for word in arguments[arguments.index(option) + 1 :] if word not in ("{}", ";", "+")]
                if words:
                    yield from self._files(posixpath.basename(words[0]), [*words[1:], *roots], None)

    def _files(self, program: str, arguments: list[str], content: str | None) -> Iterator[Operation]:
        """Read the files that a program is given: the last one of a copy is written, others mostly read."""
        if program in _LOOKING:
            return
        plain = [word for word in arguments if not word.startswith("-")]
        values = [word.partition("=")[2] for word in arguments if word.startswith("--") and "=" in word]
        paths = [self._path(word) for word in (*plain, *values)]
        if program == "dd":
            yield from self._dd(arguments)
        elif program in ("curl", "wget"):
            yield from self._download(program, arguments)
        elif program in _COPYING and len(paths) > 1:
            yield from self._copy(program, arguments, paths)
        elif program in _CHANGING or (program in ("sed", "perl") and _in_place(arguments)):
            first = 1 if program in ("sed", "perl", "chmod", "chown", "chgrp") else 0
            yield from (Operation("write", program, path, content=content) for path in paths[first:])
        else:
            pattern = program in _PATTERN_FIRST and not any(re.match(r"-[a-zA-Z]*[ef]|--reg", w) for w in arguments)
            if pattern and plain and program.endswith("awk"):
                yield Operation("code", program, content=plain[0])
            yield from (Operation("read", program, path) for path in paths[pattern:])

    def _dd(self, arguments: list[str]) -> Iterator[Operation]:
        for word in arguments:
            key, _, value = word.partition("=")
            if key in ("if", "of"):
                yield Operation("write" if key == "of" else "read", "dd", self._path(value))

    def _download(self, program: str, arguments: list[str]) -> Iterator[Operation]:
        for word in arguments:
            if word.startswith("file://"):
                yield Operation("read", program, self._path(word.removeprefix("file://")))
        for option, value in itertools.pairwise(arguments):
            if option in ("-o", "-O", "--output", "--output-document") and not value.startswith("-"):
                yield Operation("write", program, self._path(value), source="a download")

    def _copy(self, program: str, arguments: list[str], paths: list[str]) -> Iterator[Operation]:
        *sources, target = paths
        for option, value in itertools.pairwise(arguments):
            if option in ("-t", "--target-directory"):
                target, sources = self._path(value), [path for path in paths if path != self._path(value)]
        for source in sources:
            yield Operation("write" if program == "mv" else "read", program, source)
            yield Operation("write", program, target, source=source)
            yield Operation("write", program, posixpath.join(target, posixpath.basename(source)), source=source)

    def _expanded(self, words: list[str]) -> list[str]:
        """Return the words of the command itself: assignments kept as variables, what stands before it left out."""
        # What a substitution gives can be any word.
        plain = [self._expand(_INNER.sub("*", _unquoted(word)) if "$(" in word else _unquoted(word)) for word in words]
        while plain:
            if _ASSIGNMENT.match(plain[0]):
                name, _, value = plain.pop(0).partition("=")
                self._let(name, value)
            elif plain[0] in _BEFORE or plain[0] in _WITH_VALUE:
                values = _WITH_VALUE.get(plain.pop(0), 0)
                while plain and plain[0].startswith("-") and len(plain) > 1:
                    plain.pop(0)
                del plain[: min(values, max(len(plain) - 1, 0))]
            else:
                break
        if plain and plain[0] in ("export", "declare", "local", "readonly"):
            for word in plain[1:]:
                name, equals, value = word.partition("=")
                if equals:
                    self._let(name, value)
        return plain

    def _let(self, name: str, value: str) -> None:
        # Values that double with each line would soon fill the memory.
        self._variables[name] = value if len(value) <= _LONGEST_VALUE else ""

    def _expand(self, word: str) -> str:
        if "$" not in word or word.count("$") > _LONGEST_VALUE // 64:
            return word
        return _VARIABLE.sub(lambda m: self._variables.get(m.group(1) or m.group(2), m.group()), word)

    def _path(self, word: str) -> str:
        if word.startswith("/"):
            return _normal(word)
        if self._cwd is None or word.startswith(("$", "~")) or not word:
            return word
        return _normal(posixpath.join(self._cwd, word))


def _normal(path: str) -> str:
    # POSIX leaves two slashes at the beginning alone; every system at hand reads them as one.
    return posixpath.normpath("/" + path.lstrip("/")) + ("/" if path.endswith("/") and len(path) > 1 else "")


def _commands(script: str) -> Iterator[_Command]:
    """Yield the simple commands of a script with their here-documents."""
    script, documents = _without_heredocs(script)
    command, nesting = _Command(), 0
    pending: str | None = None
    taken = 0
    for match in _TOKEN.finditer(script):
        kind, text = match.lastgroup, match.group()
        if kind == "word":
            if text.startswith("\x00"):
                command.heredoc = documents[taken]
                taken += 1
            elif pending is not None:
                command.redirects.append((pending, text))
                pending = None
            else:
                command.words.append(text)
        elif kind == "redirect":
            pending = text
        elif kind == "end":
            group_piped = text == ")" and _GROUP_PIPED.match(script, match.end()) is not None
            command.piped = group_piped or (text.startswith("|") and text != "||")
            if command.words or command.redirects:
                yield command
            pending = None
            nesting = max(0, nesting + (text == "(") - (text == ")"))
            command = _Command(nesting=nesting)
    if command.words or command.redirects:
        yield command


def _without_heredocs(script: str) -> tuple[str, list[str]]:
    """Return the script with a mark in the place of each here-document, and the documents in order."""
    script = script.replace("\x00", "")
    if "<<" not in script:
        return script, []
    documents: list[str] = []
    kept: list[str] = []
    lines = script.split("\n")
    ends = {line.strip(): number for number, line in enumerate(lines)}  # the last line of each wording
    number = 0
    while number < len(lines):
        line, number = lines[number], number + 1
        parts: list[str] = []
        done = 0
        for match in _HEREDOC.finditer(line):
            word = next(group for group in match.groups() if group is not None)
            # Without a line that ends it, it is an operator of some other language.
            if ends.get(word, -1) < number:
                continue
            end = next(place for place in range(number, len(lines)) if lines[place].strip() == word)
            documents.append("\n".join(lines[number:end]))
            number = end + 1
            parts += line[done : match.start()], " \x00 "
            done = match.end()
        kept.append("".join((*parts, line[done:])))
    return "\n".join(kept), documents


def _said(words: list[str], command: _Command) -> str | None:
    """Return what a command writes to its output, where the command itself holds it."""
    if command.heredoc is not None:
        return command.heredoc
    if words and words[0] in ("echo", "printf"):
        return " ".join(words[1:])
    return None


def _found(operations: list[Operation]) -> list[str]:
    """Return the files whose names the commands print that look for files."""
    looks = (operation.words[1:] for operation in operations if operation.kind == "run" and operation.program == "find")
    return [path for words in looks for path in _searched(list(words))]


def _searched(arguments: list[str]) -> list[str]:
    """Return where `find` looks, with the name that it looks for at the end, if any."""
    roots = list(itertools.takewhile(lambda word: not word.startswith(("-", "(", "!")), arguments)) or ["."]
    names = [value for option, value in itertools.pairwise(arguments) if option in ("-name", "-iname")]
    return [posixpath.join(root, name) for root in roots for name in names] or roots


def _code(arguments: list[str], command: _Command) -> str | None:
    """Return the program text that an interpreter is given on its command line or its input, None when in a file."""
    for option, value in itertools.pairwise(arguments):
        if option in ("-c", "-e", "-E", "-r", "--eval", "-ne", "-pe"):
            return value
    plain = [word for word in arguments if not word.startswith("-")]
    return command.heredoc if not plain or arguments[-1:] == ["-"] else None


def _in_place(arguments: list[str]) -> bool:
    return any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in arguments)


def _unquoted(word: str) -> str:
    """Return a word without its quotes and escapes; what a command substitution would give stays as it is."""
    if not any(character in word for character in "'\"\\"):
        return word

    def piece(match: re.Match[str]) -> str:
        escaped, single, double, other = match.groups()
        if double is not None:
            return re.sub(r'\\(["\\$`\n])', r"\1", double)
        return next(part for part in (escaped, single, other) if part is not None)

    return _PIECE.sub(piece, word)
