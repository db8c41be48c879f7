"""Where GitHub Actions listens, it is told once, by the process that leads; elsewhere nothing is."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.unit.rollouts import edit, write_rollout

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

BROKEN = "#!/bin/sh\nprintf 'no\\n::stop-commands::x\\n ::add-mask::y\\n##[add-mask]z\\n' >&2\nexit 3\n"
# What pytest's own schema of xunit2 allows, by element: attributes and children.
XUNIT2 = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time", "skipped", "timestamp", "hostname"},
        {"properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": ({"name", "classname", "time"}, {"skipped", "error", "failure", "system-out", "system-err"}),
    "properties": (set(), {"property"}),
    "property": ({"name", "value"}, set()),
    **{name: ({"type", "message"}, set()) for name in ("skipped", "error", "failure")},
}  # fmt: skip


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_run_on_github(bench: Bench, monkeypatch: pytest.MonkeyPatch, workers: str) -> None:
    bench.task("fine")
    bench.task("broken|`x`", test=BROKEN)
    bench.task("::warning::named")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(bench.path / "summary.md"))
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-n", workers)
    text = (bench.path / "summary.md").read_text("utf-8")
    assert text.count("### Agent benchmark") == 1
    assert (
        "| fine | oracle | solved | 1 |" in text
        and "| broken&#124;&#96;x&#96; | oracle | unhealthy (verifier) | - |" in text
    )
    # Where a line begins, white space before it left out, as the runner does.
    commands = [line for line in done.outlines if line.lstrip().startswith("::")]
    ours = "::error file=tasks/broken|`x`/task.toml,title=broken|`x` · oracle · "
    assert commands and all(line.startswith(ours) for line in commands)
    assert len(commands) == len(set(commands))
    assert all(word in done.stdout.str() for word in ("stop-commands", "add-mask]z", ":warning::named"))
    assert "##[" not in done.stdout.str()


def test_nothing_is_told_elsewhere(bench: Bench) -> None:
    bench.task("broken", test=BROKEN)
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle")
    assert "broken" in done.stdout.str() and not any(line.startswith("::") for line in done.outlines)


def test_a_review_on_github(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rollout(bench.path / "jobs" / "a" / "good")
    bad = write_rollout(bench.path / "jobs" / "a" / "bad")
    edit(bad.row, lambda row: row.update(reward=0.5))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(bench.path / "summary.md"))
    done = bench.run("--benchflow-review=jobs", "-n", "2")
    text = (bench.path / "summary.md").read_text("utf-8")
    assert text.count("### Agent benchmark") == 1 and "1/2 healthy" in text and "row&#95;reward&#95;agrees" in text
    assert (
        sum(line.startswith("::error title=fix-parser · baseline · row_reward_agrees::") for line in done.outlines) == 1
    )


def test_junit_has_verdicts_and_is_xunit2_but_for_the_properties_of_tests(bench: Bench) -> None:
    bench.task("fine")
    bench.task("broken", test=BROKEN)
    bench.task("elsewhere", toml='schema_version = "1.4"\n[environment]\nos = "windows"\n')
    bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "--junitxml=out.xml")
    root = ET.parse(bench.path / "out.xml").getroot()  # noqa: S314 - written by the run above
    told = {}
    for element in root.iter():
        attributes, children = XUNIT2[element.tag]
        assert set(element.attrib) <= attributes, element.tag
        inside = {child.tag for child in element}
        # record_property of pytest itself puts them there too.
        assert inside <= children | ({"properties"} if element.tag == "testcase" else set()), element.tag
        if element.tag == "testcase":
            values = {each.get("name"): each.get("value") for each in element.iter("property")}
            told[str(values.get("benchflow_task"))] = values
    assert (told["fine"]["benchflow_verdict"], told["fine"]["benchflow_reward"]) == ("pass", "1.0")
    broken = told["broken"]
    assert (broken["benchflow_verdict"], broken["benchflow_reward"]) == ("unhealthy", "unknown")
    assert broken["benchflow_category"] == "verifier" and "benchflow_category" not in told["fine"]
