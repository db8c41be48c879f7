"""Take secrets out of records: known values in every form they travel in, and well-known key shapes.

Only secrets are touched: text without one comes back as it was, and JSON text keeps every other byte.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "[REDACTED]"

# Bodies of these sizes are remembered to be compared with the next, in steps of so many bytes.
_REMEMBER_FROM = 4096
_REMEMBER_TO = 16 * 1024 * 1024
_STEP = 1024
# So much in common is enough: the rest is scanned sooner than another text is compared.
_NEARLY_ALL = 0.9
_BACKSLASH = 0x5C

# A shorter value is too likely to be a word: taking it out everywhere would destroy the record.
SHORTEST = 6
_SHORTEST_ENCODED = 12

# What is remembered of strings already scanned, in characters; past it the memory starts afresh.
_REMEMBERED = 64 * 1024 * 1024

# Each shape begins with its literal: texts without one are passed over at memory speed.
_SHAPES: tuple[tuple[str, str], ...] = (
    ("sk-", r"(?:proj|svcacct|admin|ant|or|live|test|lf|litellm)-[A-Za-z0-9_-]{20,}"),
    ("sk-", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}"),
    ("sk-", r"(?:[A-Za-z]+[0-9]*-){1,3}(?=[A-Za-z_]*[0-9])[A-Za-z0-9_]{20,}"),
    ("sk_live_", r"[A-Za-z0-9]{20,}"),
    ("rk_live_", r"[A-Za-z0-9]{20,}"),
    ("AKIA", r"[0-9A-Z]{16}(?![A-Za-z0-9])"),
    ("ASIA", r"[0-9A-Z]{16}(?![A-Za-z0-9])"),
    ("AIza", r"[0-9A-Za-z_-]{35}"),
    ("ya29.", r"[0-9A-Za-z_-]{20,}"),
    *((f"gh{kind}_", r"[A-Za-z0-9]{36,}") for kind in "pousr"),
    ("github_pat_", r"[A-Za-z0-9_]{40,}"),
    ("glpat-", r"[A-Za-z0-9_-]{20,}"),
    ("hf_", r"[A-Za-z0-9]{30,}"),
    ("npm_", r"[A-Za-z0-9]{36}"),
    ("pypi-AgEIcHlwaS5vcmc", r"[A-Za-z0-9_-]{20,}"),
    ("dtn_", r"[a-f0-9]{32,}"),
    ("xox", r"[abeoprs]-[A-Za-z0-9-]{20,}"),
    ("gsk_", r"[A-Za-z0-9]{40,}"),
    ("xai-", r"[A-Za-z0-9]{40,}"),
    (
        "-----BEGIN ",
        r"(?:[A-Z]+ )*PRIVATE KEY-----(?:\\+[nr]|[A-Za-z0-9+/=\s:,-]){64,}?"
        r"(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z|(?![A-Za-z0-9+/=\s\\:,-]))",
    ),
)


def _hint(character: bytes, literals: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return a pattern that finds those literals that have a character, by its first place in them."""
    halves = [literal.partition(character) for literal in literals]
    around = (b"(?<=%s)%s" % (before + at, after) for before, at, after in halves if at)
    return re.compile(b"%s(?:%s)" % (character, b"|".join(around)))


_TEXT_SHAPES = tuple((literal, re.compile(re.escape(literal) + rest)) for literal, rest in _SHAPES)
# In JSON text the character after a shape is part of it or its end, and control characters are escapes.
_RAW_SHAPES = tuple((literal.encode(), re.compile((re.escape(literal) + rest).encode())) for literal, rest in _SHAPES)

# Most have one of these characters, which can be searched for much faster than all of them.
_MARKS = (b"-", b"_", b"A")
_LITERALS = dict.fromkeys(literal for literal, _ in _RAW_SHAPES)
_HINTS = (
    *(_hint(each, _LITERALS) for each in _MARKS),
    *(re.compile(re.escape(each)) for each in _LITERALS if not any(mark in each for mark in _MARKS)),
)

# An escape that can hide a character of a secret; any escape can when a secret has unusual characters.
_HIDING = re.compile(rb"\\u00[2-7]|\\/")
_ANY_ESCAPE = re.compile(rb"\\u|\\/")
_STRING_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"')
_PLAIN = re.compile(r"[A-Za-z0-9_.=+:~@%/-]*\Z")


@dataclass(frozen=True, slots=True)
class _Edit:
    """A JSON string to be replaced, with how many secrets it held."""

    start: int
    end: int
    text: bytes
    count: int


@dataclass(frozen=True, slots=True)
class _Shared:
    """What a text has in common with an earlier one: all but start:end, with the edits that are known there."""

    start: int
    end: int
    size: int
    before: list[_Edit]
    after: list[_Edit]


class Redactor:
    """Replaces secrets by `[REDACTED]`; `count` says how many times. A string seen before is not scanned again."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.count = 0
        self._secrets: dict[str, None] = {}
        self._known: re.Pattern[str] | None = None
        self._raw_forms: tuple[bytes, ...] = ()
        self._hiding = _HIDING
        self._texts: deque[tuple[bytes, list[_Edit]]] = deque(maxlen=4)
        self._seen: dict[str, tuple[str, int]] = {}
        self._seen_size = 0
        self.add(*secrets)

    def add(self, *secrets: str) -> None:
        """Learn further secret values; those shorter than `SHORTEST` characters are ignored."""
        for secret in secrets:
            # Logs are written line by line, and so may a program print a secret of several.
            for each in (secret, *secret.splitlines()):
                if len(each.strip()) >= SHORTEST:
                    self._secrets[each.strip()] = None
        forms = {form for secret in self._secrets for form in _forms(secret)}
        if forms:
            self._known = re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
        written = forms | {json.dumps(form)[1:-1] for form in forms}
        self._raw_forms = tuple(form.encode(errors="replace") for form in sorted(written))
        self._hiding = _HIDING if all(_PLAIN.match(secret) for secret in self._secrets) else _ANY_ESCAPE
        self._seen.clear()
        self._seen_size = 0
        self._texts.clear()

    def text(self, value: str) -> str:
        """Return a text without secrets."""
        text, found = self._known_text(value)
        self.count += found
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets in its strings and keys; lists and dicts are made anew."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key) if isinstance(key, str) else key: self.value(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value

    def json(self, raw: bytes) -> bytes:
        """Return valid JSON text without secrets; apart from them every byte stays.

        What a text shares with one seen just before, as a growing conversation does, is not scanned again.
        """
        known = self._nearest(raw) if len(raw) >= _REMEMBER_FROM else None
        start, end = (known.start, known.end) if known else (0, len(raw))
        edits = [*(known.before if known else ()), *self._edits(raw, start, end), *(known.after if known else ())]
        if _REMEMBER_FROM <= len(raw) <= _REMEMBER_TO:
            self._texts.append((raw, edits))
        if not edits:
            return raw
        parts: list[bytes] = []
        done = 0
        for edit in edits:
            parts += raw[done : edit.start], edit.text
            done = edit.end
            self.count += edit.count
        return b"".join((*parts, raw[done:]))

    def _nearest(self, raw: bytes) -> _Shared | None:
        """Return what a text shares with the one of those remembered that it shares most with."""
        best: _Shared | None = None
        for text, edits in reversed(self._texts):
            shared = _shared(raw, text, edits)
            if best is None or shared.size > best.size:
                best = shared
            if best.size > len(raw) * _NEARLY_ALL:
                break
        return best

    def _edits(self, raw: bytes, start: int, end: int) -> Iterator[_Edit]:
        """Yield what to replace in a part of JSON text that begins and ends between strings."""
        done = start
        for place in sorted(self._suspects(raw[start:end])):
            if start + place < done:
                continue
            begin = _string_start(raw, start + place)
            closing = _STRING_END.match(raw, begin)
            if closing is None:
                continue
            done = closing.end()
            before = json.loads(raw[begin - 1 : done])
            after, found = self._known_text(before)
            if found:
                yield _Edit(begin - 1, done, json.dumps(after).encode(), found)

    def _suspects(self, raw: bytes) -> set[int]:
        """Return places in JSON text whose string may hold a secret."""
        places: set[int] = set()
        for form in self._raw_forms:
            at = raw.find(form)
            while at >= 0:
                places.add(at)
                at = raw.find(form, at + 1)
        if any(hint.search(raw) for hint in _HINTS):
            for literal, shape in _RAW_SHAPES:
                if literal in raw:
                    places.update(match.start() for match in shape.finditer(raw))
        if b"\\" in raw:
            places.update(match.start() for match in self._hiding.finditer(raw))
        return places

    def _known_text(self, value: str) -> tuple[str, int]:
        known = self._seen.get(value)
        if known is None:
            known = self._scrub(value)
            self._seen_size += len(value)
            if self._seen_size > _REMEMBERED:
                self._seen.clear()
                self._seen_size = len(value)
            self._seen[value] = known
        return known

    def _scrub(self, value: str) -> tuple[str, int]:
        found = 0
        if self._known is not None:
            value, found = self._known.subn(MARK, value)
        for literal, shape in _TEXT_SHAPES:
            if literal in value:
                value, more = _redact_shape(shape, value)
                found += more
        return value, found


def _shared(raw: bytes, known: bytes, edits: list[_Edit]) -> _Shared:
    """Compare a JSON text with an earlier one from both ends; strings that are not wholly shared count as new."""
    start = _common_start(raw, known)
    most = min(len(raw), len(known)) - start
    same = 0
    step = 64 * _STEP
    while step >= _STEP:
        while same + step <= most and known.startswith(
            raw[len(raw) - same - step : len(raw) - same], len(known) - same - step
        ):
            same += step
        step //= 4
    shift = len(raw) - len(known)
    start = max(_string_start(raw, start) - 1, 0)
    start = min([start, *(edit.start for edit in edits if edit.start < start < edit.end)])
    end = len(raw) - same
    while 0 < end < len(raw) and raw[end - 1] == _BACKSLASH:
        end += 1
    closing = _STRING_END.match(raw, end)
    end = max(closing.end() if closing else len(raw), start)
    end = max([end, *(edit.end + shift for edit in edits if edit.start + shift < end < edit.end + shift)])
    before = [edit for edit in edits if edit.end <= start]
    after = [
        _Edit(edit.start + shift, edit.end + shift, edit.text, edit.count)
        for edit in edits
        if edit.start + shift >= end
    ]
    return _Shared(start, end, start + len(raw) - end, before, after)


def _common_start(first: bytes, second: bytes) -> int:
    most = min(len(first), len(second))
    same = 0
    step = 64 * _STEP
    while step:
        while same + step <= most and second.startswith(first[same : same + step], same):
            same += step
        step //= 4
    return same


def _redact_shape(shape: re.Pattern[str], value: str) -> tuple[str, int]:
    """Return `value` without the shape, where it stands at the start of a word, and how often it did."""
    parts: list[str] = []
    done = found = 0
    for match in shape.finditer(value):
        start = match.start()
        if start and (value[start - 1].isalnum() or value[start - 1] in "_-"):
            continue
        parts += value[done:start], MARK
        done = match.end()
        found += 1
    return "".join((*parts, value[done:])), found


def _string_start(raw: bytes, place: int) -> int:
    """Return where the contents of the JSON string around `place` begin."""
    quote_at = raw.rfind(b'"', 0, place)
    while quote_at > 0:
        before = quote_at
        while before and raw[before - 1] == _BACKSLASH:
            before -= 1
        if (quote_at - before) % 2 == 0:
            break
        quote_at = raw.rfind(b'"', 0, quote_at)
    return quote_at + 1


def _forms(secret: str) -> Iterator[str]:
    """Yield the forms a secret travels in: itself, escaped for JSON once and twice, in Python, URLs and base64."""
    yield secret
    escaped = json.dumps(secret)[1:-1]
    yield escaped
    yield json.dumps(escaped)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield repr(secret)[1:-1]
    yield quote(secret, safe="")
    if len(secret) < _SHORTEST_ENCODED:
        return
    data = secret.encode(errors="surrogatepass")
    for shift in range(3):
        # Inside a longer text the secret starts at any of three offsets; the characters it shares are left out.
        encoded = base64.b64encode(b"\0" * shift + data).decode().rstrip("=")
        whole = encoded[(0, 2, 3)[shift] : len(encoded) - ((shift + len(data)) % 3 > 0)]
        yield whole
        yield whole.replace("+", "-").replace("/", "_")
