"""A report as a file: what is in it, what it never reads, that it is the same each time, and what the command says."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_benchflow import cli
from pytest_benchflow.errors import RecordError, UsageError
from pytest_benchflow.records.arms import Arm
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.report.html import cut as cut_module
from pytest_benchflow.report.html import rollout as rollout_module
from pytest_benchflow.report.html import write as write_module
from pytest_benchflow.report.html.cut import Cut
from pytest_benchflow.report.html.write import Report, safe, write_report
from pytest_benchflow.report.review import checks_for
from tests.unit.jobs import Cell, write_job
from tests.unit.rollouts import Talk, assistant, call, edit, exchange, system, three_steps, user, write_lines

ASSETS = Path(write_module.__file__).with_name("assets")
NAME = "fix-parser__baseline__coder__default__1"
Json = dict[str, Any]


class _Scripts(HTMLParser):
    """Collects the script elements of a page as a browser's parser sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.found.append((dict(attrs), ""))
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        self._open = self._open and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._open:
            attributes, text = self.found[-1]
            self.found[-1] = (attributes, text + data)


def scripts(file: Path) -> list[tuple[dict[str, str | None], str]]:
    parser = _Scripts()
    parser.feed(file.read_text("utf-8"))
    parser.close()
    return parser.found


def index(file: Path) -> Json:
    (text,) = (text for attributes, text in scripts(file) if attributes.get("id") == "index")
    told: Json = json.loads(text)
    return told


def details(file: Path) -> list[Json]:
    """Return what is in the file of each rollout, decoded as a browser does it."""
    packed = [text for attributes, text in scripts(file) if str(attributes.get("id")).startswith("data-")]
    return [json.loads(zlib.decompress(base64.b64decode(text))) for text in packed]


def report(job: Path, **options: Any) -> Report:
    return write_report(job, job.parent / "report.html", checks_for(), **options)


def lines(file: Path) -> dict[str, Json]:
    return {entry["name"]: entry for entry in index(file)["rollouts"]}


def test_numbers_are_those_of_summary_json(tmp_path: Path) -> None:
    job = write_job(
        tmp_path / "job", [Cell("a"), Cell("a", trial=2, left="fail", reward=0.5), Cell("b", left="missing")]
    )
    edit(job / "summary.json", lambda value: value["reward"].update(mean=0.123))
    done = report(job)
    told = index(done.file)
    assert told["summary"] == read_json(job / "summary.json")
    assert told["summary"]["reward"]["mean"] == 0.123, "no second truth is computed"
    assert (done.notes, told["notes"], told["job"]["name"]) == ((), [], "job")


def test_a_job_without_its_summary_says_that_it_was_counted_now(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("a")])
    written = read_json(job / "summary.json")
    (job / "summary.json").unlink()
    done = report(job)
    assert index(done.file)["summary"] == written
    assert "this job has no summary.json yet" in done.notes[0] and not (job / "summary.json").exists()
    (job / "summary.json").write_text('{"rollouts": {', "utf-8")
    assert "summary.json cannot be read" in report(job).notes[0]


def test_a_summary_older_than_the_job_is_told(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("a")])
    write_job(tmp_path / "more", [Cell("b")])
    (tmp_path / "more" / Cell("b").name).rename(job / Cell("b").name)
    assert "summary.json tells of 1 rollouts, and 2 are here" in report(job).notes[0]


def test_lines_of_the_table(tmp_path: Path) -> None:
    cells = [
        Cell("a", result={"agent_result": {"cost_usd": 0.5, "price_source": "given", "usage_source": "provider"}}),
        Cell("a", trial=2, left="unhealthy", reward=1.0),
        Cell("b", left="missing"),
        Cell("b", trial=2, left="skipped"),
    ]
    found = lines(report(write_job(tmp_path / "job", cells)).file)
    solved, lost, missing, skipped = (found[cell.name] for cell in cells)
    assert (solved["task"], solved["agent"], solved["model"], solved["skills"], solved["trial"]) == (
        "a",
        "baseline",
        "coder",
        "default",
        1,
    )
    assert (solved["verdict"], solved["reward"], solved["tokens"], solved["tool_calls"], solved["cost"]) == (
        "pass",
        1.0,
        330,
        3,
        0.5,
    )
    assert (lost["verdict"], lost["category"], lost["said"]) == ("unhealthy", "infra", "the sandbox was lost")
    assert missing == {
        "name": cells[2].name,
        "task": "b",
        "agent": "baseline",
        "model": "coder",
        "skills": "default",
        "trial": 1,
        "canary": False,
        "verdict": "missing",
        "said": None,
    }
    assert (skipped["verdict"], skipped["said"]) == ("skipped", "it needs docker")


def test_what_is_unknown_is_null_and_never_0(tmp_path: Path) -> None:
    job = write_job(
        tmp_path / "job", [Cell("a", left="fail", reward=None, result={"timing": {}, "n_tool_calls": None})]
    )
    edit(job / Cell("a").name / "result.json", lambda value: value.pop("agent_result"))
    entry = lines(report(job).file)[Cell("a").name]
    assert [entry[key] for key in ("reward", "tokens", "cost", "seconds", "tool_calls")] == [None] * 5


def test_tokens_that_are_known_in_part_are_no_total(tmp_path: Path) -> None:
    talk = Talk()
    talk.ask(assistant("I look."))
    talk.ask(assistant("I look again."), tokens=None)
    job = write_job(tmp_path / "job", [Cell("a", left="unhealthy", reward=None, records=talk.records)])
    entry = lines(report(job).file)[Cell("a").name]
    assert (entry["tokens"], entry["tokens_known"]) == (None, 110)


def test_exchanges_tell_each_turn_once(tmp_path: Path) -> None:
    records = three_steps()
    records.insert(1, exchange([system(), user()], None, status=503))
    for number, record in enumerate(records):
        record["request"]["timestamp"] = f"2026-03-01T10:00:0{number}Z"
        record["duration_ms"] = 10.5 * number
    (detail,) = details(report(write_job(tmp_path / "job", [Cell("fix-parser", records=records)])).file)
    first, failed, second, last = detail["exchanges"]
    assert [turn["role"] for turn in first["new"]] == ["system", "user"]
    assert first["answer"]["calls"] == [{"id": "c1", "name": "bash", "arguments": '{"cmd": "cat parse.py"}'}]
    assert (failed["outcome"], failed["selected"], failed["reason"], failed["status"]) == (
        "error",
        False,
        "provider_error",
        503,
    )
    assert failed["answer"] is None and "upstream failed" in failed["body"] and failed["new"] == []
    assert [turn["role"] for turn in second["new"]] == ["assistant", "tool"] and second["kept"] == 2
    assert [turn["call"] for turn in last["new"][1:]] == ["c2", "c3"]
    assert (last["at"], last["ms"]) == ("2026-03-01T10:00:03Z", 31.5)
    assert last["usage"] == {"input": 100, "output": 10, "cache_read": None, "cache_write": None}
    assert (last["cost"], last["unpriced"]) == (None, None), "no model was paid"


def test_tool_calls_of_the_agent_have_their_times(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("fix-parser")])
    events = [
        {"type": "tool_call", "tool_call_id": "c1", "title": "look", "status": "in_progress",
         "timestamp": "2026-03-01T10:00:01Z"},
        {"type": "tool_call_update", "tool_call_id": "c1", "status": "failed", "timestamp": "2026-03-01T10:00:03Z",
         "content": [{"type": "content", "content": {"type": "text", "text": "no such file"}}, 5, None]},
        {"type": "tool_call", "tool_call_id": "c2", "title": "hang", "timestamp": "2026-03-01T10:00:04Z"},
    ]  # fmt: skip
    write_lines(job / NAME / "trajectory" / "acp_trajectory.jsonl", events)
    (detail,) = details(report(job).file)
    look, hang = detail["calls"]
    assert (look["begun"], look["ended"], look["status"]) == ("2026-03-01T10:00:01Z", "2026-03-01T10:00:03Z", "failed")
    assert look["output"] == "no such file"
    assert (hang["ended"], hang["status"]) == (None, None)


def test_the_same_job_gives_the_same_bytes(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("a"), Cell("b", left="unhealthy", reward=None), Cell("c", left="missing")])
    first = report(job).file.read_bytes()
    assert report(job).file.read_bytes() == first
    moved = tmp_path / "elsewhere" / "job"
    moved.parent.mkdir()
    job.rename(moved)
    assert report(moved).file.read_bytes() == first, "no path of the machine is in it"


def test_a_review_that_judges_otherwise_is_told_and_changes_no_number(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("fix-parser")])
    row = job / NAME / "results.jsonl"
    row.write_text(row.read_text("utf-8").replace('"reward":1.0', '"reward":0.0'), "utf-8")
    done = report(job)
    entry = lines(done.file)[NAME]
    assert (entry["verdict"], entry["review"]["verdict"], done.differing) == ("pass", "unhealthy", 1)
    assert "1 rollout is judged by a review otherwise" in done.notes[0]
    assert index(done.file)["summary"]["rollouts"]["healthy"] == 1


@pytest.mark.parametrize(
    "torn",
    [
        "result.json",
        "config.json",
        "results.jsonl",
        "trajectory/llm_trajectory.jsonl",
        "trajectory/acp_trajectory.jsonl",
        "prompts.json",
        "timing.json",
        "audit.json",
    ],
)
@pytest.mark.parametrize(
    "text", [b'{"a": ', b"\xff\xfe", b"[" * 100_000, b"[1, 2]\n", b""], ids=["cut", "bytes", "deep", "list", "empty"]
)
def test_a_damaged_file_costs_only_its_rollout(tmp_path: Path, torn: str, text: bytes) -> None:
    job = write_job(tmp_path / "job", [Cell("a"), Cell("fix-parser")])
    (job / NAME / torn).write_bytes(text)
    found = lines(report(job).file)
    assert found[Cell("a").name]["verdict"] == "pass" and found[Cell("a").name]["review"] is None
    assert found[NAME]["task"] == "fix-parser", "what job.json planned is known still"


def secret_of(tmp_path: Path) -> Path:
    secret = tmp_path / "secret.txt"
    secret.write_text("not-for-the-report", "utf-8")
    return secret


@pytest.mark.parametrize(
    "place", ["result.json", "verifier/out.txt", "agent/stdout.txt", "trajectory/llm_trajectory.jsonl", "prompts.json"]
)
def test_links_out_of_a_rollout_are_not_read(tmp_path: Path, place: str) -> None:
    job = write_job(tmp_path / "job", [Cell("fix-parser")])
    link = job / NAME / place
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(secret_of(tmp_path))
    done = report(job)
    assert done.unread == 1 and "link that leads out of the rollout" in lines(done.file)[NAME]["said"]
    assert "not-for-the-report" not in json.dumps(details(done.file)) + done.file.read_text("utf-8")


def test_links_in_a_job_are_not_followed(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("a")])
    outside = write_job(tmp_path / "outside", [Cell("fix-parser", result={"error": "not-for-the-report"})])
    (job / NAME).symlink_to(outside / NAME)
    (job / "summary.json").unlink()
    done = report(job)
    assert lines(done.file)[NAME]["verdict"] == "unhealthy" and done.unread == 1
    # It is shown, and no number is made of what lies elsewhere.
    summary = index(done.file)["summary"]
    assert summary["rollouts"] == {"asked": 1, "healthy": 1, "unhealthy": 0, "missing": 0}
    assert summary["copies"] == [NAME]
    assert "not-for-the-report" not in json.dumps(details(done.file)) + done.file.read_text("utf-8")
    (job / "summary.json").symlink_to(outside / "summary.json")
    with pytest.raises(RecordError, match=r"summary\.json: not read, as it is a link"):
        report(job)


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("fix-parser")])
    os.mkfifo(job / NAME / "agent.log")
    (job / NAME / "verifier").mkdir()
    os.mkfifo(job / NAME / "verifier" / "out.txt")
    assert "is a pipe" in lines(report(job).file)[NAME]["said"]
    (job / "job.json").unlink()
    os.mkfifo(job / "job.json")
    with pytest.raises(RecordError, match="no regular file"):
        report(job)


def test_huge_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write_job(tmp_path / "job", [Cell("a"), Cell("fix-parser")])
    os.truncate(job / NAME / "result.json", (16 << 20) + 1)
    assert "result.json has 16,777,217 bytes; at most 16,777,216 are read" in lines(report(job).file)[NAME]["said"]
    monkeypatch.setattr(rollout_module, "_LOG", 100)
    assert "results.jsonl has" in lines(report(job).file)[Cell("a").name]["said"]


def test_long_texts_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk()
    talk.ask(assistant("I look.", call("c1")))
    talk.history[-1]["content"] = "x" * 100_000
    talk.ask(assistant("", call("c2", "finish", message="Done.")))
    job = write_job(tmp_path / "job", [Cell("fix-parser", records=talk.records)])
    (job / NAME / "verifier").mkdir()
    (job / NAME / "verifier" / "log.txt").write_text("y" * 70_000, "utf-8")
    (detail,) = details(report(job).file)
    assert detail["exchanges"][1]["new"][1]["text"] == {"text": "x" * 60_000, "more": 40_000}
    (file,) = detail["verifier"]
    assert (file["size"], len(file["text"]), file["cut"]) == (70_000, 60_000, True)
    monkeypatch.setattr(cut_module, "ALL", 0)
    left = Cut(1000)
    assert left.text("z" * 900) == "z" * 900
    assert left.text("z" * 900) == {"text": "z" * 200, "more": 700}, "all texts together are bounded"


HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028\u2029&\ud800]]>"


def test_no_text_ends_the_script_that_holds_it(tmp_path: Path) -> None:
    job = write_job(
        tmp_path / HOSTILE.replace("/", "").replace("\ud800", ""),
        [Cell("a", result={"error": HOSTILE, "task_name": HOSTILE})],
    )
    done = report(job)
    kinds = [attributes.get("type") for attributes, _ in scripts(done.file)]
    assert kinds == ["application/json", None, "application/octet-stream"]
    assert index(done.file)["rollouts"][0]["said"] == HOSTILE
    text = done.file.read_text("utf-8")
    assert "alert(1)" not in text.replace("\\u003cscript\\u003ealert(1)", "").replace("&lt;script&gt;alert(1)", "")
    assert safe(json.dumps(HOSTILE, ensure_ascii=False).encode(errors="replace")).isascii()


def test_the_policy_allows_the_own_script_and_style_alone(tmp_path: Path) -> None:
    done = report(write_job(tmp_path / "job", [Cell("a")]))
    text = done.file.read_text("utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.partition(" ")[::2] for rule in html.unescape(policy).split("; "))
    own = next(text for attributes, text in scripts(done.file) if not attributes)
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert rules["default-src"] == "'none'" and rules["base-uri"] == "'none'" and rules["form-action"] == "'none'"
    for name, source in (("script-src", own), ("style-src", style)):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
    assert text.index("Content-Security-Policy") < text.index("<title>")


_SINKS: tuple[str, ...] = (
    "innerHTML",
    "outerHTML",
    "insertAdjacent",
    "document.write",
    "eval(",
    "new Function",
    "fetch(",
    "XMLHttpRequest",
)
_SINKS += ("import(", "DOMParser", "srcdoc", "createContextualFragment", "setHTML", "WebSocket", "sendBeacon")


def test_the_scripts_take_no_markup_and_load_nothing() -> None:
    told = "\n".join(file.read_text("utf-8") for file in sorted(ASSETS.glob("*.js")))
    for sink in _SINKS:
        assert sink not in told
    shown = (ASSETS / "body.html").read_text("utf-8") + (ASSETS / "report.css").read_text("utf-8")
    assert not re.search(r"\son[a-z]+=|style=|url\(|https?://|@import", shown)
    assert "</script" not in told and "</style" not in shown.lower()


def test_data_beside_the_file(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("a"), Cell("b")])
    done = report(job, single_file=0)
    assert done.data == tmp_path / "report-data"
    assert sorted(file.name for file in done.data.iterdir()) == ["000000.js", "000001.js"]
    assert index(done.file)["beside"] == "report-data" and details(done.file) == []
    packed = re.fullmatch(r"benchflowData\(1,'([A-Za-z0-9+/=]*)'\);\n", (done.data / "000001.js").read_text("utf-8"))
    assert packed and json.loads(zlib.decompress(base64.b64decode(packed[1])))["name"] == Cell("b").name
    assert "'strict-dynamic'" in done.file.read_text("utf-8").partition("<title>")[0]
    again = report(job)
    assert again.data is None and not (tmp_path / "report-data").exists(), "what is no longer part of it goes"


def test_no_directory_of_others_is_replaced(tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", [Cell("a")])
    (tmp_path / "report-data").mkdir()
    (tmp_path / "report-data" / "mine.txt").write_text("mine", "utf-8")
    with pytest.raises(UsageError, match="holds something else; pass --out"):
        report(job, single_file=0)
    assert (tmp_path / "report-data" / "mine.txt").read_text("utf-8") == "mine"


def test_one_rollout_at_a_time_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    most = 0

    class Counted(Rollout):
        def __init__(self, path: Path) -> None:
            nonlocal most
            super().__init__(path)
            alive.append(id(self))
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.remove(id(self))

    monkeypatch.setattr(rollout_module, "Rollout", Counted)
    report(write_job(tmp_path / "job", [Cell("a", trial=trial) for trial in range(1, 9)]))
    assert 1 <= most <= 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such",), "does not exist; name a job's directory"),
        (("job/" + NAME,), "is a rollout; name its job's directory"),
        (("empty",), "holds no rollout"),
        (("job", "--out", "report.txt"), "takes one that ends in .html"),
        (("job", "--out", "empty"), "is a directory; --out takes a file"),
    ],
)
def test_wrong_use_is_told_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "job", [Cell("fix-parser")])
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_the_command_says_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = write_job(tmp_path / "job", [Cell("a"), Cell("fix-parser")])
    (job / NAME / "result.json").unlink()
    (job / NAME / "result.json").symlink_to(secret_of(tmp_path))
    assert cli.main(["report", "job", "--single-file", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"job/report\.html: 2 rollouts, \d\.\d MB", lines[0])
    assert lines[1:] == [
        "  its data is in job/report-data/, which belongs beside it",
        "  1 of them cannot be read, and is shown as such",
    ]
    opened: list[str] = []

    def opens(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    assert cli.main(["report", "job", "--open", "--out", "there/all.html"]) == 0
    assert opened == [(tmp_path / "there" / "all.html").as_uri()]


def test_arms_are_named_as_summary_json_names_them(tmp_path: Path) -> None:
    cells = [Cell("a", skills="with", config={"skill_mode": "with-skill"}), Cell("a", agent="oracle", model="none")]
    job = write_job(tmp_path / "job", cells)
    (job / "job.json").unlink()
    (job / "summary.json").unlink()
    told = index(report(job).file)
    arms = {(arm["agent"], arm["model"], arm["skills"]) for arm in told["summary"]["arms"]}
    assert arms == {(entry["agent"], entry["model"], entry["skills"]) for entry in told["rollouts"]}
    assert Arm("baseline", "coder", "with").key in arms
