"""Find what looks like a secret in text, and tell where and of what kind it is; never what it is."""

from __future__ import annotations

import bisect
import itertools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# (kind, literals of which a text must have one, the whole shape). Each shape begins with a literal where it can, which
# is searched for at memory speed; a group is what must look like a secret by itself.
_SHAPES: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (kind, literals, re.compile(shape))
    for kind, literals, shape in (
        ("an API key (sk-…)", ("sk-",), r"sk-(?:[a-z]+[0-9]*-)*[A-Za-z0-9_-]{20,}"),
        ("a live payment key", ("_live_",), r"[sr]k_live_[A-Za-z0-9]{20,}"),
        ("an AWS access key", ("AKIA",), r"AKIA[0-9A-Z]{16}(?![A-Za-z0-9])"),
        ("an AWS access key", ("ASIA",), r"ASIA[0-9A-Z]{16}(?![A-Za-z0-9])"),
        ("a Google API key", ("AIza",), r"AIza[0-9A-Za-z_-]{35}"),
        ("a Google OAuth token", ("ya29.",), r"ya29\.[0-9A-Za-z_-]{20,}"),
        ("a GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{36,}"),
        ("a GitHub token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{40,}"),
        ("a GitLab token", ("glpat-",), r"glpat-[A-Za-z0-9_-]{20,}"),
        ("a Hugging Face token", ("hf_",), r"hf_[A-Za-z0-9]{30,}"),
        ("an npm token", ("npm_",), r"npm_[A-Za-z0-9]{36}"),
        ("a PyPI token", ("pypi-AgE",), r"pypi-AgE[A-Za-z0-9_-]{40,}"),
        ("a Daytona key", ("dtn_",), r"dtn_[a-f0-9]{32,}"),
        ("a Slack token", ("xox",), r"xox[abeoprs]-[A-Za-z0-9-]{20,}"),
        ("a Groq key", ("gsk_",), r"gsk_[A-Za-z0-9]{40,}"),
        ("an xAI key", ("xai-",), r"xai-[A-Za-z0-9]{40,}"),
        (
            "a private key",
            ("PRIVATE KEY-----",),
            r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\\+[nr]|\s)*[A-Za-z0-9+/=]{40}",
        ),
        ("a signed token (JWT)", ("eyJ",), r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
        ("a bearer token", ("Bearer ",), r"Bearer ([A-Za-z0-9_.~+/-]{20,}=*)"),
        ("a password in a URL", ("://",), r"://[^\s/:@\"'<>\\]{1,64}:([^\s/:@\"'<>\\$]{8,64})@[A-Za-z0-9]"),
        (
            "a value named a secret",
            ("_KEY", "SECRET", "TOKEN", "PASSW", "APIKEY"),
            r"(?:(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING)_?KEY|SECRET|TOKEN|PASSWORD|PASSWD)[A-Z0-9_]*"
            r"\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?([A-Za-z0-9_+/.~!@#%^&*-]{12,}=*)",
        ),
    )
)
_PLACEHOLDER = re.compile(
    r"redacted|left.out|x{6,}|\*{3,}|your[-_ ]|change.?me|placeholder|<|\$\{|dummy|not[-_]a[-_]", re.IGNORECASE
)
_WORDLIKE = re.compile(r"[A-Za-z_.-]+\Z|[0-9.]+\Z|/|\.{1,2}/")


def secrets_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, kind) for each thing in a text that looks like a secret."""
    for kind, literals, shape in _SHAPES:
        if not any(literal in text for literal in literals):
            continue
        for match in shape.finditer(text):
            value = match.group(1) if shape.groups else match.group()
            if _stands_alone(text, match.start(), named=bool(shape.groups)) and _is_secret(value):
                yield match.start(), kind


class Text:
    """Strings of a record in one text, so that each shape is searched for once in all of them."""

    def __init__(self, size: int = 1 << 20) -> None:
        self._size = size
        self._strings: list[str] = []
        self._places: list[Any] = []
        self._length = 0

    def add(self, place: Any, strings: Iterable[str]) -> Iterator[tuple[Any, str]]:
        """Add strings of a place; yield (place, kind) of what has been found, now and then."""
        for string in strings:
            self._strings.append(string)
            self._places.append(place)
            self._length += len(string)
        if self._length >= self._size:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Any, str]]:
        """Yield (place, kind) of what is found in the strings that are left."""
        strings, places = self._strings, self._places
        self._strings, self._places, self._length = [], [], 0
        starts: Sequence[int] = ()
        for offset, kind in secrets_in("\n".join(strings)):
            starts = starts or [0, *itertools.accumulate(len(string) + 1 for string in strings)]
            yield places[bisect.bisect_right(starts, offset) - 1], kind


def strings_of(value: Any, seen: set[int]) -> Iterator[str]:
    """Yield the strings in a JSON value, keys too; a container that is in `seen` was looked at before."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if len(item) >= _SHORTEST:
                yield item
        elif isinstance(item, dict | list) and id(item) not in seen:
            seen.add(id(item))
            if isinstance(item, dict):
                # A name and its value stand in one line, as in the text of a record.
                for key, child in item.items():
                    if isinstance(child, str) and _SHORTEST <= len(child) < _NAMED and _SECRET_NAME.search(key):
                        yield f"{key.upper()}: {child}"
                    else:
                        stack.append(child)
            else:
                stack.extend(item)


_SECRET_NAME = re.compile(r"(?<!page)(?<!next)(?:_key|apikey|secret|token|passw)", re.IGNORECASE)
_SHORTEST = 8
_NAMED = 512


def _stands_alone(text: str, start: int, *, named: bool) -> bool:
    """Tell whether a key begins a word; a name before it may be part of one."""
    if named or start == 0:
        return True
    before = text[start - 1]
    escaped = before in "nrt" and text[start - 2 : start - 1] == "\\"
    return escaped or not (before.isalnum() or before in "_-")


def _is_secret(value: str) -> bool:
    if _PLACEHOLDER.search(value) or _WORDLIKE.match(value):
        return False
    return any(character.isdigit() for character in value) and len(set(value)) >= _SHORTEST - 1
