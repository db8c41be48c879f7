"""A report in a real browser: what it shows, how it is moved in, and that nothing an agent wrote is executed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.records.journal import read_json
from pytest_benchflow.report.html.write import write_report
from pytest_benchflow.report.review import checks_for
from tests.e2e.browser import Browser, Keys, why_no_browser
from tests.unit.jobs import Cell, write_job, write_large_job
from tests.unit.rollouts import Talk, assistant, call, edit, exchange, system, three_steps, user, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRICE = {
    "source": "given",
    "of_map": False,
    "usd_per_million_tokens": [
        {"above_input_tokens": 0, "input": 10.0, "output": 50.0, "cache_read": 1.0, "cache_write": None,
         "cache_write_1h": None}
    ],
}  # fmt: skip
SOLVED, UNSOLVED = "fix-parser__alpha__coder__default__1", "fix-parser__alpha__coder__default__2"
LOST = "sort-rows__alpha__coder__default__1"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if reason := why_no_browser():
        pytest.skip(reason)
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a job in which each verdict occurs."""
    retried = three_steps()
    retried.insert(1, exchange([system(), user()], None, status=503))
    cells = [
        Cell("fix-parser", "alpha", trial=1, records=retried),
        Cell("fix-parser", "alpha", trial=2, left="fail", reward=0.5),
        Cell("fix-parser", "beta", left="normal_timeout", reward=0.0),
        Cell("sort-rows", "alpha", left="unhealthy", reward=None),
        Cell("sort-rows", "beta", left="missing"),
        Cell("sum-up", "alpha", left="skipped"),
        Cell("sum-up", "beta", reward=1.0),
    ]
    job = write_job(tmp_path_factory.mktemp("jobs") / "nightly", cells)
    (job / SOLVED / "verifier").mkdir()
    (job / SOLVED / "verifier" / "test-stdout.txt").write_text("3 passed in 0.1s\n", "utf-8")
    return job


@pytest.fixture(scope="module")
def report(job: Path) -> Path:
    return write_report(job, job / "report.html", checks_for()).file


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    browser.open(report)
    yield browser
    browser.script("try { localStorage.clear() } catch {}")
    assert browser.log() == []


def test_totals_are_those_of_summary_json(page: Browser, job: Path) -> None:
    summary = read_json(job / "summary.json")
    cards = {card.split("\n")[0]: card for card in (element.text for element in page.all(".card"))}
    assert f"{summary['reward']['mean']:.3g}" in cards["Reward"]
    assert f"mean of {summary['reward']['scored']} scored of {summary['reward']['asked']}" in cards["Reward"]
    assert f"{summary['rollouts']['healthy']} / {summary['rollouts']['asked']}" in cards["Healthy"]
    assert "unhealthy: 1 infra" in cards["Healthy"]
    assert "planned: 4 healthy, 1 unhealthy, 1 missing, 1 skipped" in cards["Cells"]
    assert f"{summary['tokens']['total']:,}" in cards["Tokens"]
    assert "unknown" in cards["Cost"] and f"{summary['cost_usd']['unpriced']} rollouts unpriced" in cards["Cost"]
    arms = page.text("#arms tbody")
    for arm in summary["arms"]:
        assert f"{arm['solved']['count']} / {arm['solved']['of']}" in arms


def test_unhealthy_missing_and_skipped_cells_are_no_zeros(page: Browser) -> None:
    cells = {element.get_attribute("aria-label"): element for element in page.all("#matrix .cell[aria-label]")}
    shown = {
        label.partition(":")[0]: (cell.text.split("\n")[0], cell.get_attribute("class") or "")
        for label, cell in cells.items()
        if label
    }
    assert shown["fix-parser, alpha · coder"][0] == "0.75"
    assert shown["fix-parser, beta · coder"][0] == "0"
    for task, state in (
        ("sort-rows, alpha", "unhealthy"),
        ("sort-rows, beta", "missing"),
        ("sum-up, alpha", "skipped"),
    ):
        text, style = shown[f"{task} · coder"]
        assert text == state and "scored" not in style.split()


def test_filters_search_and_order(page: Browser) -> None:
    assert len(page.rows()) == 7 and "7 of 7" in page.text("#matched")
    page.choose("#filter-agent", "beta")
    assert len(page.rows()) == 3 and page.address() == "agent=beta"
    page.choose("#filter-verdict", "missing")
    assert page.rows() == ["sort-rows__beta__coder__default__1"]
    page.click("#clear")
    page.choose("#filter-healthy", "no")
    assert page.rows() == [LOST, "sort-rows__beta__coder__default__1", "sum-up__alpha__coder__default__1"]
    page.click("#clear")
    page.find("#find").send_keys("sandbox was LOST")
    assert page.rows() == [LOST]
    page.click("#clear")
    page.find("#find").send_keys("nothing has this")
    assert page.rows() == [] and "No rollout matches" in page.text("#rows")
    page.click("#clear")
    page.click("#table thead th:nth-child(5) button")
    assert page.text("#table th[aria-sort]").startswith("Reward")
    assert page.rows()[0] == SOLVED and set(page.rows()[4:]) == {
        LOST,
        "sort-rows__beta__coder__default__1",
        "sum-up__alpha__coder__default__1",
    }
    page.click("#matrix tbody tr:first-child td:nth-child(2) button")
    assert sorted(page.rows()) == [SOLVED, UNSOLVED] and "of fix-parser" in page.text("#matched")


def test_filters_come_back_from_the_address(browser: Browser, report: Path) -> None:
    browser.open(report, "agent=alpha&verdict=fail&q=fix")
    assert browser.rows() == [UNSOLVED]
    assert browser.find("#find").get_attribute("value") == "fix"
    browser.open(report, "agent=nobody&%zz&=&rollout=")
    assert len(browser.rows()) == 7


def test_a_rollout_tells_its_conversation(page: Browser) -> None:
    page.click(f"#rows a[title='{SOLVED}']")
    page.opened(SOLVED)
    assert page.address() == f"rollout={SOLVED}"
    assert page.text(".rollout-head h2") == "fix-parser"
    boxes = [element.text for element in page.all(".exchange")]
    assert len(boxes) == 4
    assert "You repair programs in a sandbox." in boxes[0] and "Fix parse.py" in boxes[0] and "cat parse.py" in boxes[0]
    assert "output of c1" in boxes[0], "the result of a call stands with the call"
    assert "error · HTTP 503" in boxes[1] and "excluded: provider_error" in boxes[1] and "upstream failed" in boxes[1]
    assert "You repair programs" not in boxes[2], "a request's history is not told again"
    assert "100 in → 10 out" in boxes[2]
    page.click("#tab-findings")
    assert "checks" in page.text("#pane")
    page.click("#tab-verifier")
    assert "3 passed in 0.1s" in page.text("#pane") and "reward" in page.text("#pane table")
    page.click("#tab-events")
    assert "agent_message" in page.text("#pane")
    page.click("#tab-records")
    assert '"skill_mode": "no-skill"' in page.text("#pane") and "trajectory/llm_trajectory.jsonl" in page.text("#pane")


def test_an_unhealthy_rollout_tells_what_broke(page: Browser) -> None:
    page.click(f"#rows a[title='{LOST}']")
    page.opened(LOST)
    assert "the sandbox was lost" in page.text(".note.fault")
    assert "not counted" in page.text(".facts")
    page.click("#tab-findings")
    assert "no_infrastructure_error" in page.text(".finding.f-error")


def test_a_missing_rollout_says_that_nothing_is_there(page: Browser) -> None:
    page.click("#rows a[title='sort-rows__beta__coder__default__1']")
    page.opened("sort-rows__beta__coder__default__1")
    assert "no reason is recorded" in page.text(".rollout-head") and "missing" in page.text(".rollout-head")
    page.press(Keys.ESCAPE)
    page.click("#rows a[title='sum-up__alpha__coder__default__1']")
    page.opened("sum-up__alpha__coder__default__1")
    assert "it needs docker" in page.text(".rollout-head")


def test_links_lead_to_a_rollout_and_an_exchange(browser: Browser, report: Path) -> None:
    browser.open(report, f"rollout={SOLVED}&exchange=2")
    browser.opened(SOLVED)
    assert browser.find(".exchange.at").get_attribute("id") == "exchange-2"
    top = browser.script("return document.querySelector('.exchange.at').getBoundingClientRect().top")
    assert -5 <= top < 700
    browser.script("location.hash = arguments[0]", f"rollout={LOST}")
    browser.opened(LOST)
    browser.driver.back()
    browser.opened(SOLVED)
    browser.open(report, "rollout=no-such")
    assert "no rollout of that name" in browser.text("#rollout-view")
    assert browser.log() == []


def test_keys(page: Browser) -> None:
    page.press("j", "j", "k")
    assert page.find("tr.selected a").get_attribute("title") == SOLVED
    page.press(Keys.ENTER)
    page.opened(SOLVED)
    page.press("j", "j")
    assert page.find(".exchange.at").get_attribute("id") == "exchange-1"
    assert page.address() == f"rollout={SOLVED}&exchange=1"
    page.press("k", "]")
    page.opened(UNSOLVED)
    page.press("[")
    page.opened(SOLVED)
    page.press(Keys.ESCAPE)
    assert page.find("#job-view").is_displayed() and page.find("tr.selected a").get_attribute("title") == SOLVED
    page.press("/")
    page.press("sum")
    assert len(page.rows()) == 2, "letters in a field are no keys"
    page.press(Keys.ESCAPE, "?")
    assert page.find("#help").is_displayed()
    page.press(Keys.ESCAPE)
    assert not page.find("#help").is_displayed()


def test_the_tabs_are_moved_through_by_arrows(page: Browser) -> None:
    page.click(f"#rows a[title='{SOLVED}']")
    page.opened(SOLVED)
    page.find("#tab-conversation").send_keys(Keys.ARROW_RIGHT)
    assert page.find("[role=tab][aria-selected=true]").get_attribute("id") == "tab-findings"
    assert page.find("#pane").get_attribute("aria-labelledby") == "tab-findings"


def test_colours_follow_the_system_and_the_button(page: Browser) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"

    def system_has(scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    system_has("light")
    light = page.script(paper)
    system_has("dark")
    dark = page.script(paper)
    assert light == "rgb(251, 250, 247)" and dark == "rgb(21, 23, 26)"
    page.press("t")
    assert page.script(paper) == light and "Light" in page.text("#theme")
    page.click("#theme")
    system_has("light")
    assert page.script(paper) == dark and "Dark" in page.text("#theme")
    page.driver.refresh()
    page.until(lambda: page.script("return document.documentElement.dataset.ready") == "yes")
    assert page.script(paper) == dark, "what was chosen is kept"


def test_costs_are_told_by_exchange(browser: Browser, tmp_path: Path) -> None:
    told = {"agent_result": {"cost_usd": 0.0045, "price_source": "given", "usage_source": "provider"}}
    job = write_job(tmp_path / "priced", [Cell("fix-parser", result=told, config={"price": PRICE})])
    browser.open(write_report(job, tmp_path / "report.html", checks_for()).file)
    assert "$0.0045" in browser.text("#totals")
    browser.press("j", Keys.ENTER)
    browser.opened("fix-parser__baseline__coder__default__1")
    assert [element.text for element in browser.all(".exchange-head span") if "$" in element.text] == ["$0.0015"] * 3
    assert len(browser.all(".costs .column")) == 3


@pytest.mark.parametrize("odd", [None, 5, "x", [], {}, [None, 5, "x", []], {"a": None}], ids=repr)
def test_a_summary_of_odd_shapes_is_shown_as_far_as_it_goes(
    browser: Browser, job: Path, tmp_path: Path, odd: Any
) -> None:
    place = tmp_path / "job"
    shutil.copytree(job, place)
    keys = [*read_json(job / "summary.json"), "solved", "earlier_attempts"]
    (place / "summary.json").write_text(json.dumps(dict.fromkeys(keys, odd) | {"arms": [odd, {"tasks": odd}]}), "utf-8")
    browser.open(write_report(place, tmp_path / "report.html", checks_for()).file)
    assert len(browser.rows()) >= 5 and "unknown" in browser.text("#totals")
    assert browser.log() == []


LIVE = "<img src=x onerror=\"window.pwned='img'\"><svg onload=\"window.pwned='svg'\"></svg>"
PAYLOADS = (
    f"</script><script>window.pwned='script'</script>{LIVE}",
    f"</textarea></title></style>-->{LIVE}<!--<script>",
    "\"'><iframe srcdoc=\"<script>parent.pwned='frame'</script>\"></iframe>",
    "javascript:window.pwned='url' \u2028window.pwned='line'\u2029 ${window.pwned='template'} `+(window.pwned='x')+`",
    "\u202egnp.exe\u202c \x1b[31mred\x1b[0m \x1b]8;;http://evil.invalid\x07link \x00\x08 \ud800 __proto__ constructor",
)
HOSTILE = " ".join(PAYLOADS)


def hostile_job(place: Path) -> Path:
    talk = Talk(system(f"sys {HOSTILE}"), user(f"ask {HOSTILE}"))
    talk.ask(assistant(f"say {HOSTILE}", call(f"c1{HOSTILE}", cmd=HOSTILE)))
    talk.ask(assistant("", call("c2", f"tool{HOSTILE}", **{"__proto__": HOSTILE, HOSTILE: "x"})))
    talk.say(user(f"more {HOSTILE}"))
    talk.ask(assistant(f"end {HOSTILE}"))
    talk.records.append(exchange([system(), user()], None, status=500))
    talk.records[-1]["response"]["body"] = {"error": HOSTILE}
    talk.records[-1]["request"] |= {"timestamp": HOSTILE, "path": f"/v1/chat/completions?{HOSTILE}"}
    name = "<img src=x onerror=window.pwned='name'>"
    result = {
        "task_name": f"task/{HOSTILE}",
        "model": HOSTILE,
        "rewards": {"reward": 1.0, HOSTILE: HOSTILE},
        "error": HOSTILE,
        "error_category": HOSTILE,
        "error_details": HOSTILE,
        "warnings": [HOSTILE],
        "verdict": HOSTILE,
        "verdict_category": HOSTILE,
        "started_at": HOSTILE,
        "timing": {HOSTILE: HOSTILE, "total": HOSTILE, "agent_started_at": HOSTILE},
    }
    cells = [Cell("plain"), Cell("plain", trial=2, records=talk.records, result=result, config={"agent": HOSTILE})]
    job = write_job(place / "hostile", [cells[0]])
    odd = write_job(place / "other", [cells[1]], finished=False) / cells[1].name
    place_of = job / name
    odd.rename(place_of)
    event = {"type": HOSTILE, "text": HOSTILE, "phase": HOSTILE, "timestamp": HOSTILE}
    tool = {
        "type": "tool_call",
        "tool_call_id": HOSTILE,
        "title": HOSTILE,
        "status": HOSTILE,
        "content": [{"text": HOSTILE}],
    }
    write_lines(place_of / "trajectory" / "acp_trajectory.jsonl", [event, tool])
    for part in ("verifier", "agent"):
        (place_of / part).mkdir(exist_ok=True)
        (place_of / part / f"{name}.txt").write_text(HOSTILE, "utf-8", errors="replace")
    audit = {"verdict": "publishable", "by": HOSTILE, "note": HOSTILE, "trace_sha256": "0"}
    (place_of / "audit.json").write_text(json.dumps(audit), "utf-8")
    (job / "summary.json").unlink()
    planned: dict[str, Any] = {
        "rollout": HOSTILE,
        "task": HOSTILE,
        "agent": HOSTILE,
        "model": HOSTILE,
        "skills": HOSTILE,
    }
    edit(job / "job.json", lambda value: value["matrix"].append(planned))
    edit(job / "job.json", lambda value: value.update(started_at=HOSTILE, settings={"sandbox": HOSTILE}))
    note = {"cell": HOSTILE, "error": HOSTILE}
    (job / "cells.jsonl").write_text(json.dumps(note) + "\n", "utf-8")
    return job


def test_the_payloads_would_run_in_a_page_that_let_them(browser: Browser, tmp_path: Path) -> None:
    for number, payload in enumerate(PAYLOADS[:3]):
        page = tmp_path / f"{number}.html"
        page.write_text(f'<!doctype html><title>x</title><div data-x="">{payload}</div>', "utf-8")
        browser.driver.get(page.as_uri())
        assert browser.until(lambda: browser.script("return window.pwned"))


@pytest.mark.parametrize("single_file", [1 << 20, 0], ids=["one-file", "data-beside"])
def test_nothing_that_was_written_by_others_runs(browser: Browser, tmp_path: Path, single_file: int) -> None:
    done = write_report(hostile_job(tmp_path), tmp_path / "report.html", checks_for(), single_file=single_file)
    assert (done.data is None) == (single_file > 0)
    browser.open(done.file)
    violations = (
        "window.violations = []; addEventListener('securitypolicyviolation', (e) => violations.push(e.blockedURI))"
    )
    browser.script(violations)
    rows = len(browser.rows())
    assert rows == 3
    for number in range(rows):
        browser.script("document.querySelectorAll('#rows a')[arguments[0]].click()", number)
        browser.until(lambda: browser.script("return document.getElementById('rollout-view').dataset.ready"))
        for tab in [element.get_attribute("id") for element in browser.all("[role=tab]")]:
            browser.click(f"#{tab}")
            assert browser.script("return window.pwned") is None
        browser.press(Keys.ESCAPE)
    strange = (
        "script[src], img, iframe, svg, object, embed, form:not(#filters):not([method=dialog]), a:not([href^='#'])"
    )
    assert browser.all(strange) == []
    assert browser.script("return window.pwned") is None and browser.script("return window.violations") == []
    assert browser.script("return Object.prototype.constructor === Object && ({}).x === undefined")
    assert browser.log() == []


def test_the_policy_holds_where_a_mistake_would_let_markup_in(page: Browser) -> None:
    tried = """
        const failures = [];
        for (const attempt of [
          () => { document.body.innerHTML = '<img src=x onerror="window.pwned=1">'; },
          () => { const s = document.createElement('script'); s.text = 'window.pwned=1'; document.head.append(s); },
        ]) { try { attempt(); } catch (error) { failures.push(error.name); } }
        return [failures.length, window.pwned ?? null];
    """
    assert page.script(tried) == [2, None]
    page.log()


def test_a_thousand_rollouts_open_lazily(browser: Browser, tmp_path: Path) -> None:
    done = write_report(write_large_job(tmp_path / "large", 1000), tmp_path / "report.html", checks_for())
    assert (done.rollouts, done.unread, done.differing) == (1000, 0, 0)
    browser.open(done.file)
    assert "1,000 of 1,000 rollouts" in browser.text("#matched") and len(browser.rows()) == 300
    browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    heap = browser.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
    assert heap < 60 << 20, f"{heap:,} bytes are on the heap before anything was opened"
    index = browser.script("return document.getElementById('index').textContent.length")
    assert index < 1000 * 700
    browser.click("#more")
    assert len(browser.rows()) == 900
    browser.find("#find").send_keys("task-049")
    assert len(browser.rows()) == 20
    browser.press(Keys.ESCAPE, "j", Keys.ENTER)
    browser.until(lambda: browser.all("#exchange-2"))
    assert browser.text(".rollout-head h2") == "task-049"
    assert browser.log() == []


def test_data_beside_the_file_is_read_one_rollout_at_a_time(browser: Browser, job: Path, tmp_path: Path) -> None:
    done = write_report(job, tmp_path / "report.html", checks_for(), single_file=0)
    assert done.data is not None and len(list(done.data.iterdir())) == 5
    browser.open(done.file)
    assert browser.script("return performance.getEntriesByType('resource').length") == 0
    browser.press("j", Keys.ENTER)
    browser.opened(SOLVED)
    assert len(browser.all(".exchange")) == 4
    assert browser.log() == []
    for file in done.data.iterdir():
        file.unlink()
    browser.open(done.file, f"rollout={UNSOLVED}")
    browser.until(lambda: "is not beside this file" in browser.text("#rollout-view"))
