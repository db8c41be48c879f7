"""What every export format must keep, whatever it makes of a conversation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.exporters._base import export
from tests.unit.rollouts import (
    PROMPT,
    SYSTEM,
    Talk,
    assistant,
    call,
    exchange,
    result_of,
    system,
    three_steps,
    tool,
    user,
    write_rollout,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.exporters._base import Export

    Json = dict[str, Any]

FORMATS = [name.replace("_", "-") for name in registry.shipped("exporters")]
KEY = "sk-proj-FAKE0000FAKE0000FAKE0000"
SIGNED = "eyJGQUtFMDAwMEZBS0U." + "eyJGQUtFMDAwMEZBS0U." + "FAKE0000FAKE0000FAKE0000"


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exported(form: str, source: Path, **options: Any) -> tuple[list[Json], Export]:
    out = source.parent / "out.jsonl"
    done = export(form, [source], out, **options)
    rows = [json.loads(line) for line in out.read_bytes().decode("utf-8").split("\n") if line]
    assert all(isinstance(row, dict) for row in rows)
    assert len(rows) == done.rows
    assert done.exported + sum(done.skipped.values()) == done.seen
    return rows, done


def strings(value: Any) -> Iterator[str]:
    """Yield every string of a value, those inside of JSON text too."""
    if isinstance(value, str):
        yield value
        try:
            inner = json.loads(value)
        except ValueError:
            return
        if isinstance(inner, dict | list):
            yield from strings(inner)
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def compaction() -> list[Json]:
    """Return a run whose history was replaced by a summary: its first branch ends with the call c2."""
    before, after = Talk(), Talk(system(), user(), user("Summary: parse.py was read."))
    before.ask(assistant("I look.", call("c1", cmd="cat parse.py")))
    before.ask(assistant("", call("c2", cmd="cat tests.py")))
    before.say(user("Summarise."))
    before.ask(assistant("parse.py was read."), tools=None)
    after.ask(assistant("", call("c3", cmd="sed -i s/x/y/ parse.py")))
    after.ask(assistant("Repaired."))
    return before.records + after.records


def with_title() -> list[Json]:
    title = exchange([system("Name the conversation."), user(PROMPT)], assistant("Parser repair"), tools=None)
    return [title, *three_steps()]


def test_a_conversation_keeps_its_texts_calls_and_results(form: str, tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one")
    [row], done = exported(form, tmp_path / "job")
    found = list(strings(row))
    for text in (SYSTEM, PROMPT, "I look.", "cat parse.py", "sed -i s/x/y/ parse.py", "pytest -q", "Fixed."):
        assert text in found, text
    assert [text for text in found if text.startswith("output of")] == [f"output of c{n}" for n in (1, 2, 3)]
    assert {"bash", "finish", "cmd"} <= set(found)
    assert (done.seen, done.exported, done.rows, done.side_rows) == (1, 1, 1, 0)


def test_text_is_kept_letter_by_letter(form: str, tmp_path: Path) -> None:
    odd = 'tab\t line\u2028sep \u00e9 \U0001f600 "quote" \\ \x00 end '
    talk = Talk()
    talk.ask(assistant(odd, call("c1", cmd=odd)))
    talk.ask(assistant("Done."))
    write_rollout(tmp_path / "job" / "one", talk.records)
    [row], _ = exported(form, tmp_path / "job")
    assert list(strings(row)).count(odd) == 2


def test_each_branch_of_the_policy_is_a_row_of_its_own(form: str, tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one", compaction())
    rows, done = exported(form, tmp_path / "job")
    first, second = ([text for text in strings(row) if text in ("cat tests.py", "Repaired.")] for row in rows)
    assert (first, second) == (["cat tests.py"], ["Repaired."])
    assert (done.exported, done.rows) == (1, 2)


def test_side_calls_are_written_on_request_only(form: str, tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one", with_title())
    rows, done = exported(form, tmp_path / "job")
    assert "Parser repair" not in strings(rows)
    assert done.rows == 1
    rows, done = exported(form, tmp_path / "job", side_calls=True)
    assert "Parser repair" in strings(rows)
    assert (done.rows, done.side_rows) == (2, 1)


@pytest.mark.parametrize("key", [KEY, SIGNED], ids=["api-key", "signed-token"])
@pytest.mark.parametrize("place", ["task", "tool output", "answer", "arguments", "escaped arguments", "tool"])
def test_no_secret_is_written_and_what_changed_is_counted(form: str, place: str, key: str, tmp_path: Path) -> None:
    talk = Talk(system(), user(f"Use {key}." if place == "task" else PROMPT))
    listed = call("c1", cmd=f"curl -H {key}" if place == "arguments" else "ls")
    if place == "escaped arguments":
        listed["function"]["arguments"] = json.dumps({"cmd": key}).replace("-", "\\u002d")
    if place == "tool":
        talk.options["tools"] = [tool("bash", "cmd"), tool("finish", "message")]
        talk.options["tools"][0]["function"]["description"] = f"Send {key}."
    talk.ask(assistant(f"I know {key}." if place == "answer" else "I look.", listed), used=False)
    talk.history += [talk.records[0]["response"]["body"]["choices"][0]["message"]]
    talk.history += [result_of("c1", f"KEY={key}" if place == "tool output" else "nothing")]
    talk.ask(assistant("Done."))
    write_rollout(tmp_path / "job" / "one", talk.records)
    rows, done = exported(form, tmp_path / "job", manifest=tmp_path / "manifest.json")
    assert not [text for text in strings(rows) if key in text]
    assert "[REDACTED]" in "".join(strings(rows))
    assert done.redactions == 1
    assert done.trainable_redacted == (place in ("answer", "arguments", "escaped arguments"))
    written = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert (written["redactions"], written["rows_with_redacted_training_text"]) == (1, done.trainable_redacted)


def test_code_with_words_like_password_stays_as_it_is(form: str, tmp_path: Path) -> None:
    code = "token = stream.next()\npassword = getpass.getpass()\nAPI_KEY = load_key(path)\nsecret: str = ''"
    talk = Talk()
    talk.ask(assistant("", call("c1", cmd=code)))
    talk.ask(assistant("Done."))
    write_rollout(tmp_path / "job" / "one", talk.records)
    [row], done = exported(form, tmp_path / "job")
    assert code in strings(row)
    assert done.redactions == 0


def test_lone_surrogates_never_reach_the_file(form: str, tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")), used=False)
    talk.history += [
        talk.records[0]["response"]["body"]["choices"][0]["message"],
        result_of("c1", "half \ud83d, whole \U0001f600"),
    ]
    talk.ask(assistant("Done."))
    write_rollout(tmp_path / "job" / "one", talk.records)
    [row], _ = exported(form, tmp_path / "job")
    assert "half \ufffd, whole \U0001f600" in strings(row)


def test_ids_that_an_agent_uses_again_are_no_fault(form: str, tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("", call("call_0", cmd="ls")))
    talk.ask(assistant("", call("call_0", cmd="cat parse.py")))
    talk.ask(assistant("Done."))
    write_rollout(tmp_path / "job" / "one", talk.records)
    [row], _ = exported(form, tmp_path / "job")
    assert [text for text in strings(row) if text in ("ls", "cat parse.py", "output of call_0")] == [
        "ls",
        "output of call_0",
        "cat parse.py",
        "output of call_0",
    ]


def test_an_unknown_version_is_refused_with_those_there_are(form: str, tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one")
    with pytest.raises(ValueError, match=r"has no version '0.1' that can be written; there are: "):
        export(form, [tmp_path / "job"], tmp_path / "out.jsonl", version="0.1")
    assert not (tmp_path / "out.jsonl").exists()
