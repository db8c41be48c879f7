"""Secrets are found in every file, named by file, line and kind, and never printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.checks._evidence import RebuiltRollout
from pytest_benchflow.records.redact import MARK, Redactor
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.secrets import secrets_in, without_secrets
from tests.unit.checks.test_faults import doing
from tests.unit.rollouts import edit, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

A36 = "aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY1zA2"
# Made up, and put together here so that no scanner takes this file for a leak.
SECRETS = {
    "api-key": "sk-" + A36,
    "project-key": "sk-" + "proj-" + A36 + "_" + A36,
    "anthropic-key": "sk-" + "ant-api03-" + A36,
    "payment-key": "sk_" + "live_" + A36,
    "aws-access-key": "AK" + "IA" + "QX3DEF7GHIJ2KLMN",
    "google-key": "AI" + "za" + A36[:35],
    "google-token": "ya" + "29." + A36,
    "github-token": "gh" + "p_" + A36,
    "github-fine-token": "github" + "_pat_" + A36 + A36,
    "gitlab-token": "gl" + "pat-" + A36[:20],
    "hugging-face-token": "hf" + "_" + A36,
    "npm-token": "np" + "m_" + A36,
    "daytona-key": "dt" + "n_" + "0123456789abcdef" * 2,
    "slack-token": "xo" + "xb-123456789012-" + A36,
    "groq-key": "gs" + "k_" + A36 + A36,
    "xai-key": "xa" + "i-" + A36 + A36,
    "sendgrid-key": "S" + "G." + A36[:22] + "." + A36,
    "replicate-token": "r" + "8_" + A36,
    "digitalocean-token": "do" + "p_v1_" + "0123456789abcdef" * 4,
    "databricks-token": "da" + "pi" + "0123456789abcdef" * 2,
    "docker-token": "dckr" + "_pat_" + A36,
    "shopify-token": "shp" + "at_" + "0123456789abcdef" * 2,
    "vault-token": "hv" + "s." + A36,
    "perplexity-key": "pp" + "lx-" + A36,
    "langsmith-key": "ls" + "v2_pt_" + "0123456789abcdef" * 2 + "_0123456789",
    "e2b-key": "e2" + "b_" + "0123456789" * 4,
    "jwt": "ey" + "J" + A36 + ".ey" + "J" + A36 + "." + A36,
    "bearer": "Authorization: Bearer " + A36,
    "named": "AWS_SECRET_ACCESS_KEY=wJ4lrXUtnFEMIK7MDENG/bPxRfiCY" + A36[:12],
    "named-in-a-profile": "aws_secret_access_key = wJ4lrXUtnFEMIK7MDENGbPxRfiCY" + A36[:12],
    "named-in-json": json.dumps({"client_secret": A36}),
    "password": "DB_PASSWORD=corr3ct-horse",
    "password-in-a-url": "postgres://app:corr3cthorse@db:5432/app",
    "private-key": "-----BEGIN RSA " + "PRIVATE KEY-----\n" + A36 + A36 + "\n-----END",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("around", ["{}", "first\n{}\nlast", 'x = "{}"', "export TOKEN_FILE=x; echo {} | tee log"])
def test_shapes_are_found_plain_and_in_json(secret: str, around: str) -> None:
    text = around.replace("{}", secret)
    for form in (text, json.dumps(text), json.dumps(json.dumps(text))):
        assert secrets_in(form.encode()), form


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_what_is_found_is_taken_out_whole_and_nothing_else(secret: str) -> None:
    clean, found = without_secrets(f"before\n{secret}\nafter", MARK)
    assert found
    assert A36 not in clean
    assert "corr3ct" not in clean
    assert clean.startswith("before\n")
    assert clean.endswith("after") or "PRIVATE" in secret
    assert not secrets_in(clean.encode())


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_that_is_there_twice_is_taken_out_twice(secret: str) -> None:
    clean, found = without_secrets(f"{secret}\nb\n{secret}\n", MARK)
    assert found == 2
    assert not secrets_in(clean.encode())


@pytest.mark.parametrize(
    "secret", [text for name, text in SECRETS.items() if name in ("api-key", "github-token", "jwt")]
)
def test_what_was_redacted_is_no_secret(secret: str) -> None:
    assert not secrets_in(f"KEY={Redactor([secret]).text(secret)} and API_KEY={MARK}".encode())


ORDINARY = {
    "words": "the task-runner asks for a disk-based password-reset-token-handler-for-everyone",
    "code": "token = tokens[index + 1]; password = getpass.getpass('Password for the database: ')",
    "names": 'API_KEY_ENVIRONMENT_VARIABLE = "OPENAI_API_KEY"; TOKEN=$GITHUB_TOKEN; SECRET=${SECRET_FROM_VAULT}',
    "placeholders": "API_KEY=your-api-key-goes-here-1234 TOKEN=xxxxxxxxxxxxxxxx1 PASSWORD=changeme123",
    "examples": "AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY API_KEY=example-key-1234567890abc",
    "names-with-numbers": (
        "API_KEY_HEADER = 'X-Service-Key-v2'; TOKEN_HASH = 'pbkdf2_sha256'; SECRET_NAME = 'app-2024-session.v2'; "
        "TOKEN = read_token_from_vault2(path)"
    ),
    "digests": "commit 3f786850e387550fdab836ed7e6dc881de23001b sha256:" + "0123456789abcdef" * 4,
    "counts": "MAX_TOKENS=128000000000 TOKENIZERS_PARALLELISM=false TOKEN_LIMIT: 1000000000000",
    "identifiers": "call_abcdefghijklmnop123456 chatcmpl-ABCDEFGHIJKLMNOPQRSTUV12 getElementsByClassNameAndTag2",
    "paths": "TOKEN=/run/secrets/token_file_number_1 PASSWORD=./secrets/password1",
    "urls": "https://example.org:8443/path https://user@example.org/x git@example.org:a/b2.git",
    "base64": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
}


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_text_is_no_secret(text: str) -> None:
    for form in (text, json.dumps(text)):
        assert not secrets_in(form.encode())
    assert without_secrets(text, MARK) == (text, 0)


KEY = SECRETS["api-key"]


def said(path: Path) -> str:
    (finding,) = run_checks(Rollout(path)).of("no_secrets_in_artifacts")
    assert finding.severity == "warning"
    assert KEY not in finding.message
    return finding.message


def test_each_log_is_named_with_its_line(tmp_path: Path) -> None:
    write_rollout(tmp_path, doing("env", f"PATH=/bin\nMODEL={KEY}\n"))
    message = said(tmp_path)
    # The result of the call is in the second request, and in the row.
    for place in ("llm_trajectory.jsonl:2 holds an API key", "results.jsonl:1 holds an API key"):
        assert place in message


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("verifier/test-stdout.txt", f"ok\nok\nkey {KEY}\n", "verifier/test-stdout.txt:3"),
        ("agent/stderr.txt", f"{KEY}\n", "agent/stderr.txt:1"),
        ("artifacts/deep/out.bin", f"\x00\n\n{KEY}", "artifacts/deep/out.bin:3"),
        ("notes.json", json.dumps({"a": 1, "b": f"x\n{KEY}"}, indent=1), "notes.json:3"),
        ("artifacts/long.txt", "line\n" * 300_000 + KEY, "artifacts/long.txt:300001"),
    ],
    ids=["verifier", "agent", "binary", "unknown-file", "long-file"],
)
def test_each_file_is_named_with_its_line(tmp_path: Path, name: str, text: str, place: str) -> None:
    write_rollout(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert said(tmp_path) == f"possible secrets: {place} holds an API key (sk-…)"


@pytest.mark.parametrize("name", ["config", "result", "acp", "row"])
def test_each_record_is_named_when_only_it_has_the_secret(tmp_path: Path, name: str) -> None:
    rundir = write_rollout(tmp_path)
    path = getattr(rundir, name)
    edit(path, lambda value: value.update(note=f"key {KEY}"))
    assert f"{path.name}:1 holds an API key" in said(tmp_path)


def test_a_secret_in_a_torn_log_is_found_all_the_same(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    with rundir.llm.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": KEY})[:-2])
    assert f"{rundir.llm.name}:4 holds an API key" in said(tmp_path)


@pytest.mark.parametrize("depth", [0, 200, 600, 2000], ids=["plain", "deep", "deeper", "deepest"])
@pytest.mark.parametrize("beside", ["{", '"request": {', '"body": {', '"response": {'])
def test_a_secret_is_found_anywhere_in_a_record_and_however_deep(tmp_path: Path, beside: str, depth: int) -> None:
    rundir = write_rollout(tmp_path)
    nested = f'"extra": {"[" * depth}"{KEY}"{"]" * depth},'
    rundir.llm.write_text(rundir.llm.read_text("utf-8").replace(beside, beside + nested, 1), "utf-8")
    assert f"{rundir.llm.name}:1 holds an API key" in said(tmp_path)


def test_earlier_attempts_links_and_a_row_that_is_made_anew_are_not_looked_at(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path)
    (tmp_path / "attempts" / "1").mkdir(parents=True)
    (tmp_path / "attempts" / "1" / "log.txt").write_text(KEY)
    (tmp_path / "secret.txt").write_text(KEY)
    (tmp_path / "secret.txt").rename(tmp_path.parent / "outside.txt")
    (tmp_path / "artifacts").mkdir(exist_ok=True)
    (tmp_path / "artifacts" / "link").symlink_to(tmp_path.parent / "outside.txt")
    edit(rundir.row, lambda value: value.update(note=KEY))
    assert not run_checks(RebuiltRollout(tmp_path)).of("no_secrets_in_artifacts")
