"""What GitHub Actions is told: a bounded table that is no markup of others, and commands that nothing can break."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from markdown_it import MarkdownIt

from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.report import github
from pytest_benchflow.report.github import annotation_lines, append_summary, command, tell, told_of
from pytest_benchflow.report.markdown import Told, document, escaped
from pytest_benchflow.report.summary import Summary, summarize
from tests.unit.jobs import Cell, write_job
from tests.unit.rollouts import edit

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    "</td></tr></table><script>alert(1)</script> | a\n\n# head\n- x\n```\ncode `tick` **bold** _em_ "
    "[x](http://evil.invalid) ![i](x) <http://evil.invalid> www.evil.invalid a@evil.invalid @user ~~s~~ $x$ &lt; \\| "
    "%0A::error::x\r\u2028 ::set-output name=x::y"
)
ROOM = 1 << 20


def summary(name: str = "a", **changes: Any) -> Summary:
    facts: dict[str, Any] = {
        "task": name, "agent": "baseline", "model": "coder", "skills": "default", "trial": 1, "verdict": "pass",
        "category": None, "reward": 1.0, "steps": 3, "tool_calls": 3, "calls_model": True, "tokens": 330, "cost": 0.5,
        "completed": 3, "with_usage": 3, "truncated": 0, "effort": None, "training_ready": True, "seconds": 60.0,
        "directory": f"jobs/j/{name}",
    }  # fmt: skip
    return Summary(**{**facts, **changes})


def finding(
    message: str = "it was lost", severity: str = "error", check: str = "no_infrastructure_error"
) -> dict[str, Any]:
    return {"check": check, "severity": severity, "message": message, "category": "infra"}


def rendered(text: str) -> str:
    return str(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(text))


def cells(text: str) -> list[list[str]]:
    """Return the rows of the tables that a reader of Markdown sees, heads included."""
    rows = re.findall(r"<tr>(.*?)</tr>", rendered(text), re.DOTALL)
    return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]


def test_a_table_with_the_worst_first() -> None:
    told = [
        Told(summary("a")),
        Told(summary("b", verdict="fail", reward=0.0)),
        Told(summary("c", verdict="unhealthy", category="infra", cost=None, tokens=None), [finding()]),
    ]
    head, *rows = cells(document(told, ROOM, notes=["skipped: 2 cells"]))
    assert head == ["task", "agent", "model", "verdict", "reward", "steps", "tokens", "cost", "time"]
    assert [row[0] for row in rows[:3]] == ["c", "b", "a"]
    assert rows[0][3:8] == ["unhealthy (infra)", "-", "3", "unknown", "unknown"]
    assert rows[4] == ["error", "no_infrastructure_error", "1", "it was lost"]
    text = rendered(document(told, ROOM, notes=["skipped: 2 cells"]))
    assert (
        "2/3 healthy" in text and "skipped: 2 cells" in unescape(text) and "1 of 3 rollouts unpriced" in unescape(text)
    )


def test_nothing_of_others_is_markup() -> None:
    told = [
        Told(
            summary(HOSTILE, agent=HOSTILE, model=HOSTILE, verdict=HOSTILE, category=HOSTILE),
            [finding(HOSTILE, HOSTILE, HOSTILE)],
        )
    ]
    text = document(told, ROOM)
    html = rendered(text)
    assert set(re.findall(r"<(\w+)", html)) == {"h3", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"} - (
        set() if "<ul>" in html else {"ul", "li"}
    )
    assert len(cells(text)) == 4 and all(len(row) == len(cells(text)[0]) for row in cells(text)[:2])
    assert "www.evil" not in text and "http:" not in text and "@" not in text
    # GitHub links addresses and mentions in what was read, where a reference is its character again.
    assert re.findall(r"@(?!<!-- -->)", unescape(text)) == [] and "a@<!-- -->evil.invalid" in unescape(text)
    shown = cells(text)[1][1]
    assert "<script>alert(1)</script> | a # head - x ``` code `tick` **bold** _em_" in shown, "and it reads as it was"


def test_the_summary_stays_below_its_limit_and_counts_the_rest() -> None:
    told = [
        Told(summary(f"task-{number:05}", directory=f"jobs/j/{number:05}"), [finding(f"lost {number}")])
        for number in range(3000)
    ]
    text = document(told, 50_000)
    assert len(text.encode()) <= 50_000
    shown = len(re.findall(r"^\| task-", text, re.MULTILINE))
    assert 100 < shown < 3000 and f"More rollouts, which have no room here: {3000 - shown:,}." in text
    found = len(re.findall(r"^\| error \| no", text, re.MULTILINE))
    assert 50 < found < shown and f"More findings, which have no room here: {3000 - found:,}." in text
    assert len(cells(text)) == 2 + shown + found
    assert document(told, 100) == ""


def test_the_rest_of_a_limit_is_used_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "summary.md"
    file.write_bytes(b"before\n")
    assert list(append_summary(file, [Told(summary())])) == []
    assert file.read_text("utf-8").startswith("before\n### Agent benchmark\n")
    monkeypatch.setattr(github, "ROOM", 10)
    (line,) = append_summary(file, [Told(summary())])
    assert "nothing was added to the job's summary" in line and "of at most 10 bytes" in line
    monkeypatch.undo()
    (line,) = append_summary(tmp_path, [Told(summary())])
    assert "Is a directory" in line


@pytest.mark.parametrize(
    ("asked", "lines", "written"),
    [
        ({}, 0, False),
        ({"GITHUB_ACTIONS": "true"}, 1, False),
        ({"GITHUB_ACTIONS": "false"}, 0, False),
        ({"GITHUB_STEP_SUMMARY": "out.md"}, 0, True),
    ],
    ids=["nowhere", "actions", "not-actions", "summary"],
)
def test_each_variable_asks_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], lines: int, written: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    assert len(list(tell([Told(summary(), [finding()])]))) == lines
    assert (tmp_path / "out.md").is_file() is written
    assert list(tell([])) == []


def test_annotations_name_file_title_and_finding() -> None:
    told = [
        Told(summary("c", task="org/c"), [finding(), finding("odd", "warning", "cost_known")], "tasks/c/task.toml"),
        Told(summary("d"), [finding()]),
    ]
    assert list(annotation_lines(told)) == [
        "::error file=tasks/c/task.toml,title=org/c · baseline · no_infrastructure_error::"
        "it was lost (and in 1 more rollout)",
        "::warning file=tasks/c/task.toml,title=org/c · baseline · cost_known::odd",
    ]


def test_annotations_are_as_many_as_are_shown() -> None:
    told = [
        Told(summary(str(number)), [finding(f"lost {number}"), finding(f"odd {number}", "warning")])
        for number in range(13)
    ]
    lines = list(annotation_lines(told))
    assert [sum(line.startswith(f"::{kind} ") for line in lines) for kind in ("error", "warning")] == [10, 10]
    assert lines[-1] == "benchflow: 3 errors and 3 warnings more have no annotation; GitHub shows 10 of each kind"


@pytest.mark.parametrize("severity", ["error", "warning", "::stop-commands::x", ""])
def test_no_text_ends_a_command_or_begins_another(severity: str) -> None:
    nasty = f"x::error file=y::z\n::add-mask::w\r\n::stop-commands::t{HOSTILE}"
    told = [Told(summary(nasty, agent=nasty, directory=nasty), [finding(nasty, severity, nasty)], f"a,line=5::{nasty}")]
    (line,) = annotation_lines(told)
    assert len(line.splitlines()) == 1 and "\r" not in line
    parts = re.fullmatch(r"::(error|warning) file=([^,:\n]*),title=([^,:\n]*)::(.*)", line)
    assert parts and (parts[1] == "warning") == (severity == "warning")
    assert command("error", "50% of\nit", title="a:b,c") == "::error title=a%3Ab%2Cc::50%25 of%0Ait"


def test_findings_come_from_the_rollouts_own_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    task = tmp_path / "tasks" / "a"
    task.mkdir(parents=True)
    (task / "task.toml").write_text("", "utf-8")
    job = write_job(
        tmp_path / "jobs" / "j",
        [Cell("a", result={"checks": {"findings": [finding(), 5]}}, config={"task_path": str(task)})],
    )
    root = job / Cell("a").name
    made = summarize(Rollout(root), str(root.relative_to(tmp_path)))
    told = told_of(made, tmp_path, tmp_path)
    assert (told.findings[0]["message"], told.file) == ("it was lost", "tasks/a/task.toml")
    edit(root / "config.json", lambda value: value.update(task_path=str(tmp_path.parent)))
    assert told_of(made, tmp_path, tmp_path).file is None
    (root / "result.json").write_text("{", "utf-8")
    (lost,) = told_of(made, tmp_path, tmp_path).findings
    assert lost["severity"] == "error" and lost["message"].startswith("result.json: not JSON")


def test_escaping_keeps_plain_text_plain() -> None:
    assert escaped("csv-report 1,234 50% (a/b) naïve 漢字") == "csv-report 1,234 50% (a/b) naïve 漢字"
    assert escaped("a\u202eb") == "a&#92;u202eb"
    assert json.dumps(escaped("x" * 500, limit=10)).startswith('"xxxxxxxxxx')
