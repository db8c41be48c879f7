"""The skills an agent showed its model are recovered from its first request, whatever the agent."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.checks import run_checks
from pytest_benchflow.checks._catalogue import _elements, _items, skill_facts
from pytest_benchflow.records.rollout import Rollout
from tests.unit.checks.test_faults import doing
from tests.unit.rollouts import Talk, assistant, edit, system, tool, user, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

    Json = dict[str, Any]

ELEMENTS = """<available_skills>
  <skill>
    <name>code-simplifier</name>
    <description>Make code simpler &amp; shorter.</description>
  </skill>
  <skill>
    <name>ledger-rules</name>
    <description>How the ledger is kept.</description>
    <location>/skills/ledger-rules/SKILL.md</location>
  </skill>
</available_skills>"""
PATHS = """<available_skills description="Skills the agent can use.">
<agent_skill fullPath="/home/agent/.agents/skills/code-simplifier/SKILL.md">Make code simpler.</agent_skill>
<agent_skill fullPath="/skills/ledger-rules/SKILL.md">How the ledger is kept.</agent_skill>
</available_skills>"""
NAMES = ["code-simplifier", "ledger-rules"]
REMINDER = """<system-reminder>
The following skills are available for use with the Skill tool:

- code-simplifier: Make code simpler.
  - never longer
- ledger-rules
</system-reminder>"""
INSTRUCTIONS = """<skills_instructions>
## Skills
A skill is a set of instructions in a file.
### Available skills
- code-simplifier: Make code simpler: and shorter (file: /home/agent/.codex/skills/.system/code-simplifier/SKILL.md)
- ledger-rules: How the ledger is kept (file: /home/agent/.codex/skills/ledger-rules/SKILL.md)
### How to use skills
- Discovery: The list above is complete.
</skills_instructions>"""
MARKED = """Load a skill.

## Available Skills
- **code-simplifier**: Make code simpler.
- **ledger-rules**: How the ledger is kept."""


def chat(*messages: Json, description: str | None = None) -> list[Json]:
    tools = [tool("bash", "cmd")]
    if description is not None:
        tools.append({"type": "function", "function": {"name": "skill", "description": description, "parameters": {}}})
    talk = Talk(*messages, tools=tools)
    talk.ask(assistant("Done."))
    return talk.records


def other(path: str, request: Json, answer: Json) -> list[Json]:
    exchange = {"method": "POST", "path": path, "body": request}
    return [{"request": exchange, "response": {"status_code": 200, "body": answer}, "error": None, "metadata": {}}]


SPOKEN = {
    "type": "message",
    "role": "assistant",
    "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "Hi"}],
}
WRITTEN = {
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}],
}
SAID = {"candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": [{"text": "Hi"}]}}]}
SHOWN: dict[str, tuple[list[Json], str]] = {
    "elements-in-the-system-prompt": (chat(system(f"<SKILLS>\n{ELEMENTS}\n</SKILLS>"), user()), ELEMENTS),
    "elements-after-talk-of-them": (chat(system(f"Use <available_skills> below.\n{ELEMENTS}"), user()), ELEMENTS),
    "elements-with-paths": (chat(system(PATHS), user()), PATHS),
    "elements-in-a-tool": (chat(user(), description=f"Load a skill.\n{ELEMENTS}"), ELEMENTS),
    "marked-items-in-a-tool": (chat(user(), description=MARKED), MARKED.partition("\n\n")[2]),
    "reminder-to-the-user": (
        other(
            "/v1/messages",
            {
                "system": [{"type": "text", "text": "You are an agent."}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": REMINDER}]}],
            },
            SPOKEN,
        ),
        REMINDER.partition("\n")[2].rpartition("\n")[0],
    ),
    "developer-message": (
        other(
            "/v1/responses",
            {
                "instructions": "You are an agent.",
                "input": [
                    {"role": "developer", "content": [{"type": "input_text", "text": INSTRUCTIONS}]},
                    {"role": "user", "content": [{"type": "input_text", "text": "Do it."}]},
                ],
            },
            WRITTEN,
        ),
        "### Available" + INSTRUCTIONS.partition("### Available")[2].partition("\n### How")[0],
    ),
    "system-instruction": (
        other(
            "/v1beta/models/m:generateContent",
            {
                "systemInstruction": {"parts": [{"text": f"# Available Agent Skills\nSome.\n\n{ELEMENTS}"}]},
                "contents": [{"role": "user", "parts": [{"text": "Do it."}]}],
            },
            SAID,
        ),
        ELEMENTS,
    ),
}


def facts(path: Path, records: list[Json], **config: Any) -> Json:
    write_rollout(path, records, config_with=config)
    return skill_facts(Rollout(path))


@pytest.mark.parametrize(("records", "text"), SHOWN.values(), ids=SHOWN)
def test_a_catalogue_is_recovered_with_the_hash_of_its_text(tmp_path: Path, records: list[Json], text: str) -> None:
    found = facts(tmp_path, records, skill_mode="with-skill", task_skills=["ledger-rules"])
    assert found["task_skills_loading"] == 1
    assert found["skill_catalog"] == {
        "count": 2,
        "names": NAMES,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "exchange_index": 0,
    }


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (chat(system("You write code. See docs/skills.md."), user()), None),
        (chat(user(), description="Load a skill. No skills are currently available."), []),
        (chat(system("<available_skills>\n</available_skills>"), user()), []),
        (chat(user("Write the section\n## Available skills\nfor the README.")), None),
        (chat(system("Do it."), user(), assistant(ELEMENTS), user("Go on.")), None),
    ],
    ids=["none-shown", "says-none", "empty-list", "heading-without-a-list", "only-in-an-answer"],
)
def test_no_catalogue_is_told_from_an_empty_one(
    tmp_path: Path, records: list[Json], expected: list[str] | None
) -> None:
    catalogue = facts(tmp_path, records)["skill_catalog"]
    assert (catalogue["names"] if catalogue else None) == expected


@pytest.mark.parametrize(
    ("mode", "skills", "shown", "loading"),
    [
        ("with-skill", ["ledger-rules"], True, 1),
        ("with-skill", ["ledger-rules", "pdf"], True, 0),
        ("with-skill", ["ledger-rules"], False, None),
        ("with-skill", [], True, None),
        ("no-skill", ["pdf"], True, 0),
        ("no-skill", [], False, 0),
        ("no-skill", ["ledger-rules"], True, 1),
    ],
    ids=["all", "one-lacks", "not-serialised", "none-named", "others-shown", "nothing", "leaked"],
)
def test_loading_is_known_where_the_catalogue_is(
    tmp_path: Path, mode: str, skills: list[str], shown: bool, loading: int | None
) -> None:
    records = chat(system(ELEMENTS if shown else "You repair programs."), user())
    assert facts(tmp_path, records, skill_mode=mode, task_skills=skills)["task_skills_loading"] == loading


def test_an_agent_that_shows_no_catalogue_is_not_judged_by_it(tmp_path: Path) -> None:
    write_rollout(tmp_path, config_with={"skill_mode": "with-skill", "task_skills": ["ledger-rules"]})
    report = run_checks(Rollout(tmp_path))
    assert "not serialised" in report.not_applicable["task_skills_loaded"]
    assert not report.findings


def test_a_plug_ins_skill_is_known_by_its_own_name(tmp_path: Path) -> None:
    records = chat(user(REMINDER.replace("- ledger-rules", "- books:ledger-rules: How.")))
    found = facts(tmp_path, records, skill_mode="with-skill", task_skills=["ledger-rules"])
    assert found["task_skills_loading"] == 1
    assert found["skill_catalog"]["names"] == ["code-simplifier", "books:ledger-rules"]


@pytest.mark.parametrize(
    ("command", "output", "found"),
    [
        ("cat /app/.claude/skills/pdf/SKILL.md", "# PDF", True),
        ("cd ~/.codex/skills/pdf && head SKILL.md", "# PDF", True),
        ("cat /skills/ledger-rules/scripts/sum.py", "print()", True),
        ("python3 -c \"print(open('/skills/x/SKILL.md').read())\"", "# X", True),
        ("cat /home/agent/.claude/skills/*/*.md", "# X", True),
        ("wc -l src/skills/*", "10 src/skills/jump.py", False),
        ("cat SKILL.md", "cat: SKILL.md: No such file or directory", False),
        ("find / -name SKILL.md", "/x/SKILL.md", False),
        ("echo 'no SKILL.md here'", "no SKILL.md here", False),
        ("printf x > SKILL.md; cat SKILL.md", "x", False),
    ],
    ids=[
        *("read", "in-its-directory", "file-of-the-tasks-skill", "in-python", "wild-cards", "other-skills"),
        *("not-there", "found", "named", "own-file"),
    ],
)
def test_a_rollout_without_skills_reads_none(tmp_path: Path, command: str, output: str, found: bool) -> None:
    write_rollout(tmp_path, doing(command, output), config_with={"task_skills": ["ledger-rules"]})
    report = run_checks(Rollout(tmp_path))
    assert [finding.check for finding in report.errors] == ["no_skill_without_skills"] * found
    assert all("exchange 0" in finding.message for finding in report.errors)


def test_a_task_about_such_files_may_read_them(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path, doing("cat docs/SKILL.md", "# Skil"))
    edit(rundir.acp, lambda event: event.update(text="Correct the spelling in docs/SKILL.md."))
    assert not run_checks(Rollout(tmp_path)).of("no_skill_without_skills")


def test_another_tools_record_of_a_catalogue_is_compared_by_its_number(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path, SHOWN["elements-in-the-system-prompt"][0])
    edit(rundir.config, lambda value: value.pop("plugin_version"))
    for count, healthy in ((2, True), (3, False)):
        edit(rundir.result, lambda value, n=count: value.update(skill_catalog={"count": n, "harness": "x"}))
        assert (not run_checks(Rollout(tmp_path)).of("skill_catalog_agrees")) is healthy


@pytest.mark.parametrize("piece", ["<name>", "<skill a=", "<skill x='/a/b", "<x-skill y='/a", "  "], ids=repr)
def test_a_catalogue_made_to_be_slow_is_read_in_time(piece: str) -> None:
    shown = f"<available_skills>{piece * 30_000}</available_skills>"
    started = time.process_time()
    assert len(list(_elements(shown))) == 1
    assert not list(_items(f"skills{shown}"))
    assert time.process_time() - started < 10
