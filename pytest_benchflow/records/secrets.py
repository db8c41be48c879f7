"""Find what looks like a secret in text, and tell where and of what kind it is; never what it is."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_benchflow.records.jsontext import dumps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Nearly every secret has a long run of letters and digits, and text has few: those are found at memory speed, and only
# what stands around one is compared with the shapes.
_RUN = b"a" * 16
_LETTERS = bytes(ord("a") if chr(code).isascii() and chr(code).isalnum() else ord(" ") for code in range(256))
_BEFORE, _PREFIX, _AFTER = 64, 8, 256

_SHAPES: tuple[tuple[str, str], ...] = (
    ("an API key (sk-…)", r"sk-(?:[a-z]+[0-9]*-)*[A-Za-z0-9_-]{20,}"),
    ("a live payment key", r"(?:sk|rk)_live_[A-Za-z0-9]{20,}"),
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
    ("a SendGrid key", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("a Replicate token", r"r8_[A-Za-z0-9]{32,}"),
    ("a DigitalOcean token", r"do[opr]_v1_[a-f0-9]{64}"),
    ("a Databricks token", r"dapi[a-f0-9]{32}"),
    ("a Docker token", r"dckr_pat_[A-Za-z0-9_-]{20,}"),
    ("a Shopify token", r"shp(?:at|ca|pa|ss)_[a-f0-9]{32}"),
    ("a Vault token", r"hv[bs]\.[A-Za-z0-9_-]{24,}"),
    ("an API key (pplx-…)", r"pplx-[A-Za-z0-9]{32,}"),
    ("a LangSmith key", r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),
    ("an E2B key", r"e2b_[a-f0-9]{40}"),
    ("a signed token (JWT)", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
)
# Names that make a secret of a value, and how a value follows one in a shell, in code and in JSON.
_NAMED = (
    r"(?:(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING)_?KEY|SECRET|TOKEN|PASSWORD|PASSWD)[A-Z0-9_]{0,40}"
    r"\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?([A-Za-z0-9_+/.~!@#%^&*-]{12,}=*)"
)
_KINDS = tuple(kind for kind, _ in _SHAPES)
_SHAPE = re.compile("|".join(f"({shape})" for _, shape in _SHAPES).encode())
# How a shape begins, or what is in a name, before a run or where it begins.
_HINT = re.compile(
    rb"sk-|sk_live_|rk_live_|AKIA|ASIA|AIza|ya29\.|gh[pousr]_|github_pat_|glpat-|hf_|npm_|pypi-|dtn_|xox|gsk_|xai-|eyJ|"
    rb"SG\.|r8_|do[opr]_v1_|dapi|dckr_pat_|shp(?:at|ca|pa|ss)_|hv[bs]\.|pplx-|lsv2_|e2b_|"
    rb"Bearer|KEY|Key|key|SECRET|Secret|secret|TOKEN|Token|token|PASSW|Passw|passw"
)
# What providers put before the ids of calls and answers, of which logs are full.
_IDS = frozenset({b"call_", b"cmpl-", b"oolu_", b"resp_", b'"msg_'})
_NEXT_TO_NAMES = (
    ("a value named a secret", re.compile(_NAMED.encode())),
    (
        "a value named a secret",
        re.compile(
            rb"\"(?:\w*[_-])?(?:api[_-]?key|apiKey|access_?key|secret(?:_?key)?|(?:access|auth|refresh|id)[_-]?token|"
            rb"accessToken|token|client_?secret|clientSecret|passw(?:or)?d)\\*\"\s?:\s?\\*\"([A-Za-z0-9_+/.~-]{12,}=*)"
        ),
    ),
    (
        "a value named a secret",
        re.compile(rb"aws_secret_access_key\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"),
    ),
    ("a bearer token", re.compile(rb"Bearer ([A-Za-z0-9_.~+/-]{20,}=*)")),
)
# Passwords need not be long: these are searched for everywhere.
_PASSWORDS = (
    (
        "a password",
        (b"PASSW",),
        re.compile(rb"PASSW(?:OR)?D[A-Z0-9_]{0,40}\\*[\"']?\s{0,3}[=:]\s{0,3}\\*[\"']?([^\s\"'\\$<>(){}]{8,64})"),
    ),
    (
        "a password in a URL",
        (b"@", b"://"),
        re.compile(rb"://[^\s/:@\"'<>\\]{1,64}:([^\s/:@\"'<>\\$]{8,64})@[A-Za-z0-9]"),
    ),
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\\+[nr]|\s)*[A-Za-z0-9+/=]{40}")
_PRIVATE_KEY_END = re.compile(rb"-----END (?:[A-Z]+ )*PRIVATE KEY-----")
_MORE = re.compile(rb"[A-Za-z0-9_.~+/-]*=*")
_PLACEHOLDER = re.compile(
    rb"redacted|left.out|x{6,}|\*{3,}|your[-_ ]|change.?me|placeholder|<|\$\{|dummy|not[-_]a[-_]|example", re.IGNORECASE
)
_DIGIT = re.compile(rb"[0-9]")
_WORDLIKE = re.compile(rb"[A-Za-z_.-]+\Z|[0-9.]+\Z|/|\.{1,2}/")

# Names in code, such as pbkdf2_sha256: words, numbers, and words with a number, joined.
_COMPOSED = re.compile(rb"(?:(?:[A-Za-z]+[0-9]{0,3}|[0-9]+)(?:[-_.]|\Z))+")

_BATCH = 1 << 10
# In a text of this size; only one that is made to be slow has more.
_MOST = 4000


class Found(NamedTuple):
    """A stretch of a text that looks like a secret."""

    start: int
    end: int
    kind: str


def secrets_in(data: bytes) -> list[Found]:
    """Return each thing in a text that looks like a secret, by where it starts."""
    found: dict[int, Found] = {}
    looked = 0
    mask = data.translate(_LETTERS)
    at = mask.find(_RUN)
    while at >= 0:
        end = mask.find(b" ", at + len(_RUN))
        end = len(data) if end < 0 else end
        if data[at - 5 : at] not in _IDS and _HINT.search(data, max(0, at - _BEFORE), at + _PREFIX):
            looked += 1
            if looked > _MOST:
                found[at] = Found(at, len(data), "more of what may be secrets than was looked at")
                break
            for each in _around(data, at):
                found.setdefault(each.start, each)
        at = mask.find(_RUN, end)
    if b"PRIVATE KEY-----" in data:
        for match in _PRIVATE_KEY.finditer(data):
            closing = _PRIVATE_KEY_END.search(data, match.end())
            found[match.start()] = Found(match.start(), closing.end() if closing else len(data), "a private key")
    for kind, literals, shape in _PASSWORDS:
        if all(literal in data for literal in literals):
            for match in shape.finditer(data):
                if _is_secret(match.group(1), least=5):
                    found.setdefault(match.start(1), Found(*match.span(1), kind))
    return sorted(found.values())


def without_secrets(text: str, mark: str) -> tuple[str, int]:
    """Return a text in which what looks like a secret is replaced by `mark`, and how many there were."""
    data = text.encode("utf-8", "surrogatepass")
    found = secrets_in(data)
    if not found:
        return text, 0
    pieces, position = [], 0
    for each in found:
        if each.start >= position:
            pieces += [data[position : each.start], mark.encode()]
        position = max(position, each.end)
    return b"".join([*pieces, data[position:]]).decode("utf-8", "surrogatepass"), len(found)


def _around(data: bytes, run: int) -> Iterator[Found]:
    """Yield the secrets that a run of letters and digits is part of."""
    begin, end = max(0, run - _BEFORE), run + _AFTER
    for hint in _HINT.finditer(data, begin, run + _PREFIX):
        match = _SHAPE.match(data, hint.start(), end) if _begins_word(data, hint.start()) else None
        if match is not None and match.lastindex is not None:
            if _is_secret(match.group()):
                yield Found(match.start(), _end(data, match.end()), _KINDS[match.lastindex - 1])
        elif hint.group()[:1] in b"BbKkSsTtPp":
            for kind, shape in _NEXT_TO_NAMES:
                for named in shape.finditer(data, begin, end):
                    if _is_secret(named.group(1)) and not _COMPOSED.fullmatch(named.group(1)):
                        yield Found(named.start(1), _end(data, named.end(1)), kind)


def _end(data: bytes, end: int) -> int:
    """Return where a secret ends that may go on past what was looked at."""
    match = _MORE.match(data, end)
    return match.end() if match is not None else end


def _begins_word(data: bytes, start: int) -> bool:
    before = data[max(0, start - 2) : start]
    # In JSON text a line's first word follows the letter of an escape.
    return re.match(rb"(?:.?[^A-Za-z0-9_-]|\\[nrt]|)\Z", before, re.DOTALL) is not None


def _is_secret(value: bytes, least: int = 7) -> bool:
    if len(set(value)) < least or not _DIGIT.search(value):
        return False
    return not (_WORDLIKE.match(value) or _PLACEHOLDER.search(value))


def secrets_in_values(values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, str]]:
    """Yield (number, kind) for each secret in numbered JSON values."""
    rest = iter(values)
    while batch := list(itertools.islice(rest, _BATCH)):
        # Mostly there is none: what is written in one go is only taken apart to tell where one is.
        if secrets_in(dumps([value for _, value in batch])):
            yield from _numbered([dumps(value) for _, value in batch], [number for number, _ in batch])


def _numbered(pieces: list[bytes], numbers: list[int]) -> Iterator[tuple[int, str]]:
    starts: list[int] = []
    for found in secrets_in(b"\n".join(pieces)):
        starts = starts or list(itertools.accumulate((len(piece) + 1 for piece in pieces), initial=0))
        yield numbers[bisect_right(starts, found.start) - 1], found.kind
