"""Split and expand the words of a Dockerfile line: quotes, escapes, variables, heredoc openings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPENING = re.compile(r"""\d*<<(?P<dash>-?)(?P<name>"[^"<]+"|'[^'<]+'|[^<'"\s]+)\Z""")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A text written inside the Dockerfile; `expand`: variables in it count (the name was not quoted)."""

    name: str
    text: str
    expand: bool = True


@dataclass(frozen=True, slots=True)
class Opening:
    """Where a heredoc is announced; `certain` False: it could be something else, such as a shift."""

    name: str
    quoted: bool
    strip_tabs: bool
    certain: bool


# Variables that name each other double their values line by line.
_LONGEST = 1024 * 1024


def split_words(text: str, escape: str) -> list[str]:
    """Split at blanks outside quotes; quotes and escapes stay in the words. Raises: ValueError on an open quote."""
    words: list[str] = []
    word = ""
    quote = ""
    position = 0
    while position < len(text):
        char = text[position]
        if char == escape and quote != "'" and position + 1 < len(text):
            word += text[position : position + 2]
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char.isspace():
            if word:
                words.append(word)
            word = ""
            position += 1
            continue
        word += char
        position += 1
    if quote:
        raise ValueError(f"a quote {quote} is opened and never closed")
    return [*words, word] if word else words


def heredoc_openings(text: str, escape: str) -> Iterator[Opening]:
    """Find the heredocs that a line of RUN, COPY or ADD announces, in order."""
    try:
        words = split_words(text, escape)
    except ValueError:
        return  # a shell may understand what we do not; it then holds no heredoc of the build
    for word, following in zip(words, [*words[1:], ""], strict=True):
        # The shell allows a blank before the name; builders differ, so only a text with its end counts.
        certain = word not in ("<<", "<<-")
        match = _OPENING.match(word if certain else word + following)
        if match:
            name = match["name"]
            quoted = name[0] in "\"'"
            yield Opening(name.strip("\"'"), quoted, bool(match["dash"]), certain)


def expand_word(text: str, values: Mapping[str, str], escape: str, *, quotes: bool = True) -> str:
    """Replace variables and, with `quotes`, remove quotes and escapes. Raises: ValueError on a broken ${…}.

    Understood are $NAME, ${NAME}, and ${NAME…} with :-word, :+word, :?text (also without the colon), #prefix,
    %suffix, /pattern/replacement (also doubled); what is unset is empty.
    """
    out: list[str] = []
    quote = ""
    position = length = 0
    while position < len(text):
        char = text[position]
        following = text[position + 1 : position + 2]
        if char == escape and quote != "'" and following:
            keep = (quote == '"' or not quotes) and following not in ('"', "$", escape)
            out.append(char + following if keep else following)
            position += 2
        elif quotes and char in "\"'" and quote in ("", char):
            quote = "" if quote else char
            position += 1
        elif char == "$" and quote != "'":
            value, position = _variable(text, position, values, escape)
            out.append(value)
            length += len(value)
            if length > _LONGEST:
                raise ValueError(f"its variables come to more than {_LONGEST} characters")
        else:
            out.append(char)
            position += 1
    return "".join(out)


def _variable(text: str, position: int, values: Mapping[str, str], escape: str) -> tuple[str, int]:
    """Return what the variable at `position` stands for and where the text goes on."""
    if text[position + 1 : position + 2] != "{":
        match = _NAME.match(text, position + 1)
        return (values.get(match[0], ""), match.end()) if match else ("$", position + 1)
    end = _closing_brace(text, position + 2, escape)
    inner = text[position + 2 : end]
    match = _NAME.match(inner)
    if match is None:
        raise ValueError(f"${{{inner}}} names no variable")
    value = values.get(match[0])
    rest = inner[match.end() :]
    operator = re.match(r":?[-+?]|##?|%%?|//?", rest)
    if not rest:
        return value or "", end + 1
    if operator is None:
        raise ValueError(
            f"${{{inner}}} is not supported; allowed: ${{NAME}}, with one of :- :+ :? # ## % %% / // after it"
        )
    word = rest[operator.end() :]
    if operator[0][0] in "#%/":
        return _edited(value or "", operator[0], word, values, escape), end + 1
    return _chosen(match[0], value, operator[0], expand_word(word, values, escape)), end + 1


def _chosen(name: str, value: str | None, operator: str, word: str) -> str:
    """Return the variable or the word, as the operator says."""
    there = value is not None and not (operator.startswith(":") and not value)
    if operator.endswith("+"):
        return word if there else ""
    if operator.endswith("?") and not there:
        raise ValueError(f"{name} must have a value: {word or 'it is not set'}")
    return (value or "") if there else word


def _edited(value: str, operator: str, word: str, values: Mapping[str, str], escape: str) -> str:
    """Return the variable without a prefix (#) or suffix (%), or with a pattern replaced (/); doubled: longest, all."""
    slash = re.search(rf"(?<!{re.escape(escape)})/", word) if operator[0] == "/" else None
    pattern = expand_word(word[: slash.start()] if slash else word, values, escape)
    wild = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    if operator[0] == "/":
        replacement = expand_word(word[slash.end() :], values, escape) if slash else ""
        return re.sub(wild, lambda _: replacement, value, count=len(operator) % 2, flags=re.DOTALL) if wild else value
    ends = range(len(value) + 1) if operator in ("#", "%%") else range(len(value), -1, -1)
    for end in ends:
        removed, kept = (value[:end], value[end:]) if operator[0] == "#" else (value[end:], value[:end])
        if re.fullmatch(wild, removed, re.DOTALL):
            return kept
    return value


def _closing_brace(text: str, position: int, escape: str) -> int:
    depth = 1
    while position < len(text):
        if text[position] == escape:
            position += 1
        elif text.startswith("${", position):
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if not depth:
                return position
        position += 1
    raise ValueError("a ${ is never closed")
