"""Find what looks like a secret in text, and tell where and of what kind it is; never what it is."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Nearly every secret has a long run of letters and digits, and text has few: those are found at memory speed, and only
# what stands around one is compared with the shapes.
_RUN = b"a" * 16
_LETTERS = bytes(ord("a") if chr(code).isascii() and chr(code).isalnum() else ord(" ") for code in range(256))
_BEFORE, _AFTER = 64, 128

_SHAPES: tuple[tuple[str, str], ...] = (
    ("an API key (sk-…)", r"sk-(?:[a-z]+[0-9]*-)*[A-Za-z0-9_-]{20,}"),
    ("a live payment key", r"[sr]k_live_[A-Za-z0-9]{20,}"),
    ("an AWS access key", r"A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])"),
    ("a Google API key", r"AIza[0-9A-Za-z_-]{35}"),
    ("a Google OAuth token", r"ya29\.[0-9A-Za-z_-]{20,}"),
    ("a GitHub token", r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,}"),
    ("a GitLab token", r"glpat-[A-Za-z0-9_-]{20,}"),
    ("a Hugging Face token", r"hf_[A-Za-z0-9]{30,}"),
    ("an npm token", r"npm_[A-Za-z0-9]{36}"),
    ("a PyPI token", r"pypi-AgE[A-Za-z0-9_-]{40,}"),
    ("a Daytona key", r"dtn_[a-f0-9]{32,}"),
    ("a Slack token", r"xox[abeoprs]-[A-Za-z0-9-]{20,}"),
    ("a Groq key", r"gsk_[A-Za-z0-9]{40,}"),
    ("an xAI key", r"xai-[A-Za-z0-9]{40,}"),
    ("a signed token (JWT)", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
)
# Names that make a secret of a value, and how a value follows one in a shell, in code and in JSON.
_NAMED = (
    r"(?:(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING)_?KEY|SECRET|TOKEN|PASSWORD|PASSWD)[A-Z0-9_]{0,40}"
    r"\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?([A-Za-z0-9_+/.~!@#%^&*-]{12,}=*)"
)
_KINDS = tuple(kind for kind, _ in _SHAPES)
_SHAPE = re.compile("|".join(rf"(?<![A-Za-z0-9_-])({shape})" for _, shape in _SHAPES).encode())
# In JSON text a line's first word follows the letter of an escape.
_ESCAPED = re.compile(rb"\\[nrt](?=[A-Za-z0-9_-])")
_VALUES: tuple[tuple[str, bytes | None, re.Pattern[bytes]], ...] = (
    ("a value named a secret", None, re.compile(_NAMED.encode())),
    ("a bearer token", None, re.compile(rb"Bearer ([A-Za-z0-9_.~+/-]{20,}=*)")),
    (
        "a password",
        b"PASSW",
        re.compile(rb"PASSW(?:OR)?D[A-Z0-9_]{0,40}\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?([^\s\"'\\$<>(){}]{8,64})"),
    ),
    ("a password in a URL", b"://", re.compile(rb"://[^\s/:@\"'<>\\]{1,64}:([^\s/:@\"'<>\\$]{8,64})@[A-Za-z0-9]")),
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\\+[nr]|\s)*[A-Za-z0-9+/=]{40}")
_PLACEHOLDER = re.compile(
    rb"redacted|left.out|x{6,}|\*{3,}|your[-_ ]|change.?me|placeholder|<|\$\{|dummy|not[-_]a[-_]", re.IGNORECASE
)
_WORDLIKE = re.compile(rb"[A-Za-z_.-]+\Z|[0-9.]+\Z|/|\.{1,2}/")

# Keys of JSON objects whose strings are secrets by name.
_SECRET_KEYS = frozenset(
    name
    for base in ("api_key", "access_key", "secret_key", "private_key", "secret", "token", "auth_token", "access_token",
                 "refresh_token", "client_secret", "password", "passwd")
    for name in (base, base.upper(), base.replace("_", ""), base.replace("_", "-"))
)  # fmt: skip
_SHORTEST = 12


def secrets_in(data: bytes) -> list[tuple[int, str]]:
    """Return (offset, kind) for each thing in a text that looks like a secret, sorted."""
    found: dict[int, str] = {}
    mask = data.translate(_LETTERS)
    at = mask.find(_RUN)
    while at >= 0:
        end = mask.find(b" ", at + len(_RUN))
        end = len(data) if end < 0 else end
        begin = max(0, at - _BEFORE)
        window = _ESCAPED.sub(lambda match: b" " * len(match.group()), data[begin : end + _AFTER])
        for offset, kind in _of_window(window):
            found.setdefault(begin + offset, kind)
        at = mask.find(_RUN, end)
    if b"PRIVATE KEY-----" in data:
        found |= {match.start(): "a private key" for match in _PRIVATE_KEY.finditer(data)}
    for kind, literal, shape in _VALUES:
        if literal is not None and literal in data:
            for match in shape.finditer(data):
                if _is_secret(match.group(1), least=5):
                    found.setdefault(match.start(), kind)
    return sorted(found.items())


def _of_window(window: bytes) -> Iterator[tuple[int, str]]:
    for match in _SHAPE.finditer(window):
        if match.lastindex is not None and _is_secret(match.group()):
            yield match.start(), _KINDS[match.lastindex - 1]
    for kind, literal, shape in _VALUES:
        if literal is None:
            for match in shape.finditer(window):
                if _is_secret(match.group(1)):
                    yield match.start(), kind


def _is_secret(value: bytes, least: int = 7) -> bool:
    if _PLACEHOLDER.search(value) or _WORDLIKE.match(value):
        return False
    return any(48 <= code <= 57 for code in value) and len(set(value)) >= least


class Scan:
    """Looks through the strings of JSON values; a string that several values hold is looked through once."""

    def __init__(self) -> None:
        self._clean: set[str] = set()
        self._kinds: dict[str, list[str]] = {}  # of each string that holds secrets
        self._strings: list[str] = []
        self._places: list[Any] = []

    def add(self, place: Any, value: Any) -> list[tuple[Any, str]]:
        """Take the strings of a value; return (place, kind) of secrets in those that are known already."""
        clean, strings, known = self._clean, self._strings, self._kinds
        before = len(strings)
        hits: list[tuple[Any, str]] = []
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                if len(item) < _SHORTEST:
                    continue
                if item not in clean:
                    clean.add(item)
                    strings.append(item)
                elif known and item in known:
                    hits += [(place, kind) for kind in known[item]]
            elif isinstance(item, dict):
                stack.extend(item.values())
                if not _SECRET_KEYS.isdisjoint(item):
                    named = [f"{key.upper()}={item[key]}" for key in item if key in _SECRET_KEYS]
                    stack.extend(named)
            elif isinstance(item, list):
                stack.extend(item)
        self._places += [place] * (len(strings) - before)
        return hits

    def found(self) -> list[tuple[Any, str]]:
        """Look through what was added since; return (place, kind) of each secret."""
        strings, places = self._strings, self._places
        self._strings, self._places = [], []
        text = "\n".join(strings)
        secrets = secrets_in(text.encode("utf-8", "surrogatepass"))
        if not secrets:
            return []
        sizes = (len(string.encode("utf-8", "surrogatepass")) + 1 for string in strings)
        starts = [0, *itertools.accumulate(sizes)]
        hits = []
        for offset, kind in secrets:
            number = bisect_right(starts, offset) - 1
            self._kinds.setdefault(strings[number], []).append(kind)
            hits.append((places[number], kind))
        return hits
