"""No secret stays, whatever form it travels in; nothing else changes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pytest_benchflow
from pytest_benchflow.records import redact
from pytest_benchflow.records.redact import MARK, Redactor

PLAIN = "hunter2-plain-value"
ODD = 'pa"ss\\w/ord√\n'.strip()

FORMS = {
    "as-it-is": f"key={PLAIN};",
    "odd": f"<{ODD}>",
    "in-json": json.dumps({"k": ODD}),
    "in-json-in-json": json.dumps(json.dumps({"k": ODD})),
    "in-a-url": f"https://host/?k={quote(ODD, safe='')}",
    "basic-auth": "Basic " + base64.b64encode(f"user:{PLAIN}".encode()).decode(),
    "base64-shifted": base64.b64encode(f"us:{PLAIN}:more".encode()).decode(),
    "base64-url": base64.urlsafe_b64encode(f"u:{PLAIN}??>>".encode()).decode(),
}

KEYS = {
    "openai": "sk-proj-" + "aB3_" * 12,
    "openai-old": "sk-" + "aB3d" * 12,
    "fake": "sk-test-FAKE0000FAKE0000FAKE0000FAKE",
    "of-others": "sk-Acme-v2-" + "a1B2" * 6,
    "anthropic": "sk-ant-api03-" + "xY9-" * 20,
    "openrouter": "sk-or-v1-" + "0f" * 32,
    "aws": "AKIA" + "Q7" * 8,
    "google-token": "ya29." + "Q7x" * 8,
    "google": "AIza" + "Sy-_9" * 7,
    "github": "ghp_" + "a1B2" * 9,
    "github-fine": "github_pat_" + "1aB_" * 20,
    "gitlab": "glpat-" + "a1B2c" * 4,
    "hugging-face": "hf_" + "aBcD" * 9,
    "slack": "xoxb-" + "123456789-" * 3,
    "daytona": "dtn_" + "0af9" * 16,
    "pem": "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIabc+/12" * 20 + "\n-----END RSA PRIVATE KEY-----",
}

CODE = {
    "token-names": "next_token = stream.peek()\npassword = getpass.getpass()\nsecret_key = load_key(path)",
    "ids-with-dashes": "id='sk-estimator-id-12' id='sk-top-container-id-1234567'",
    "words-with-dashes": "class='sk-fading-circle sk-cube-grid-container' task-queue-with-a-long-name disk-usage",
    "pem-constant": 'if "-----BEGIN PRIVATE KEY-----" in text: raise ValueError("a key")',
    "hashes": "sha256:" + "0f" * 32 + " commit 2df8a2835d3f1bd2f2eadf5a7a2e1ad0dfb0d271",
    "call-ids": "call_9aB3d9aB3d9aB3d toolu_01A09q90qw90lq917835lq9 fc_67ca09c6bedc8190a7abfec07b1a1332",
    "variables": "export OPENAI_API_KEY=$KEY; headers = {'Authorization': 'Bearer ' + token}",
    "prefix-inside-a-word": "xghp_" + "a1B2" * 9,
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_a_known_secret_is_found_in_every_form(text: str) -> None:
    redactor = Redactor([PLAIN, ODD])
    assert MARK in redactor.text(text)
    assert redactor.count == 1
    line = json.dumps({"body": [text, 'a "quoted" \\ text', 1.5, None]}).encode()
    assert json.loads(redactor.json(line))["body"] == [redactor.text(text), 'a "quoted" \\ text', 1.5, None]
    assert redactor.value({"a": [text]}) == {"a": [redactor.text(text)]}


def test_a_secret_with_both_kinds_of_quotes_is_found_as_python_shows_it() -> None:
    secret = "first\"half'second"
    assert Redactor([secret]).text(f"environment: {secret!r}") == f"environment: '{MARK}'"


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("around", ["{}", "KEY={}\n", '{{"k": "{}"}}', "\\n{},"], ids=["bare", "env", "json", "escape"])
def test_a_key_is_known_by_its_shape(key: str, around: str) -> None:
    text = around.format(key)
    redactor = Redactor()
    if around == "\\n{},":
        # A letter before the key is part of a word in a text, and of an escape in JSON.
        text = "\n" + key
    assert key not in redactor.text(text)
    assert json.loads(Redactor().json(json.dumps([text]).encode())) == [redactor.text(text)]


@pytest.mark.parametrize("text", CODE.values(), ids=CODE.keys())
def test_ordinary_code_is_untouched(text: str) -> None:
    redactor = Redactor([PLAIN])
    assert redactor.text(text) == text
    line = json.dumps({"arguments": json.dumps({"cmd": text})}).encode()
    assert redactor.json(line) == line
    assert redactor.count == 0


def test_the_package_itself_holds_nothing_that_looks_like_a_key() -> None:
    redactor = Redactor()
    for path in Path(pytest_benchflow.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert redactor.text(text) == text, path


def test_json_text_keeps_every_byte_around_a_secret() -> None:
    line = b'{ "n": 12345678901234567890123, "f": 1.0e+2, "a": "hunter2-plain-value" , "b": "\\u00e9\\ud800" , "b": 1}'
    assert Redactor([PLAIN]).json(line) == line.replace(PLAIN.encode(), MARK.encode())


@pytest.mark.parametrize(
    "written",
    [r"hunter2-plain\u002dvalue", r"\u0068unter2-plain-value", "hunter2-plain-value"],
    ids=["escaped-inside", "escaped-at-start", "plain"],
)
def test_an_escape_hides_no_secret(written: str) -> None:
    assert json.loads(Redactor([PLAIN]).json(f'["{written}"]'.encode())) == [MARK]


def test_a_secret_as_a_key_is_taken_out() -> None:
    assert Redactor([PLAIN]).value({PLAIN: 1}) == {MARK: 1}
    assert Redactor([PLAIN]).json(json.dumps({PLAIN: 1}).encode()) == b'{"%s": 1}' % MARK.encode()


def test_each_line_of_a_secret_of_several_is_one() -> None:
    redactor = Redactor(["first-half\n}\n  second-half\n"])
    # As a log that is written line by line meets it.
    assert [redactor.text(line) for line in ("K=first-half\n", "}\n", "  second-half\n")] == [
        f"K={MARK}\n",
        "}\n",
        f"  {MARK}\n",
    ]
    assert redactor.text("first-half\n}\n  second-half") == MARK


def test_a_word_is_no_secret() -> None:
    redactor = Redactor(["", "  ", "yes", "12345"])
    assert redactor.text("yes, 12345") == "yes, 12345"


def test_a_secret_learned_later_is_found_in_what_was_clean_before() -> None:
    redactor = Redactor()
    line = json.dumps({"body": "x" * 5000 + "late-secret"}).encode()
    assert redactor.json(line) == line
    redactor.add("late-secret")
    assert b"late-secret" not in redactor.json(line)
    assert redactor.text("late-secret") == MARK


def test_only_what_is_new_is_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[int] = []
    suspects = Redactor._suspects

    def counted(self: Redactor, raw: bytes) -> set[int]:
        scanned.append(len(raw))
        return suspects(self, raw)

    monkeypatch.setattr(Redactor, "_suspects", counted)
    redactor = Redactor([PLAIN])
    messages = [f"message {number} " + "x" * 200 for number in range(200)]
    sent = 0
    for size in range(100, 200):
        line = json.dumps({"messages": messages[:size], "tools": ["t" * 3000]}).encode()
        sent += len(line)
        redactor.json(line)
    assert sum(scanned) < sent / 10


PIECES = st.sampled_from(["a", '"', "\\", '\\\\"', PLAIN, ODD, PLAIN[:9], "AKIA" + "Q7" * 8, "\n", "é", "x" * 9])


@settings(deadline=None)
@given(st.lists(st.lists(st.lists(PIECES, max_size=4).map("".join), max_size=6), min_size=2, max_size=6), st.booleans())
def test_what_is_remembered_never_changes_the_result(bodies: list[list[str]], escape: bool) -> None:
    kept = redact._REMEMBER_FROM, redact._STEP
    redact._REMEMBER_FROM, redact._STEP = 0, 4
    try:
        redactor = Redactor([PLAIN, ODD])
        for number, _ in enumerate(bodies):
            body = [text for each in bodies[: number + 1] for text in each]
            line = json.dumps({"m": body, "t": 1}, ensure_ascii=escape).encode()
            before = redactor.count
            fresh = Redactor([PLAIN, ODD])
            assert json.loads(redactor.json(line)) == fresh.value({"m": body, "t": 1})
            assert redactor.count - before == fresh.count
    finally:
        redact._REMEMBER_FROM, redact._STEP = kept
