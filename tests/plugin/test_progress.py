"""Progress of rollouts under way: on a terminal below pytest's own lines, elsewhere in whole lines, or not at all."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugin.screen import Terminal

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

# An agent that waits until a file of its task's name, or `all`, is in the directory `go`.
CONFTEST = """
import asyncio
from pathlib import Path

from pytest_benchflow.agents.nop import Nop

GO = Path(__file__).parent / "go"


class Waits(Nop):
    name = "waits"

    async def run(self, context):
        while not any((GO / name).exists() for name in (context.task.name, "all")):
            await asyncio.sleep(0.02)
        return await super().run(context)


def pytest_benchflow_agents():
    return {"waits": lambda name: Waits()}
"""
HOW = ("tasks", "--benchflow-agent=waits", "--benchflow-sandbox=scripted", "-p", "no:cacheprovider")
ROLLOUTS = (*HOW, "-m", "rollout")


def tasks(bench: Bench, *names: str) -> None:
    (bench.path / "conftest.py").write_text(CONFTEST, "utf-8")
    (bench.path / "go").mkdir()
    for name in names:
        bench.task(name)


def go(bench: Bench, name: str = "all") -> None:
    (bench.path / "go" / name).touch()


def on_terminal(bench: Bench, *arguments: str, columns: int = 80, lines: int = 24) -> Terminal:
    command = [sys.executable, "-m", "pytest", "--benchflow-job-name=job", *arguments]
    return Terminal(command, cwd=bench.path, columns=columns, lines=lines)


def timeless(lines: list[str]) -> list[str]:
    """Return lines without what a second run may change: times, and the padding that depends on them."""
    return [re.sub(r"=+", "=", re.sub(r"\d+\.\d+ ?s\b(?: \(0:\d\d:\d\d\))?", "T", line)) for line in lines]


def waiting(*names: str, agent: str = "waits") -> re.Pattern[str]:
    return re.compile("".join(rf"(?=.*^{name} · {agent} +agent \d)" for name in names), re.DOTALL | re.MULTILINE)


def below(lines: list[str]) -> list[str]:
    """Return what is shown below pytest's own lines, from the counters on."""
    first = next((number for number, line in enumerate(lines) if "under way" in line), len(lines))
    return [line for line in lines[first:] if line]


def rows(lines: list[str]) -> list[str]:
    return [line for line in below(lines) if line.startswith("task-with")]


@pytest.mark.parametrize("how", [("--benchflow-concurrency=3",), ("-n", "2")], ids=["flights", "workers"])
def test_what_is_under_way_is_seen_and_leaves_no_trace(bench: Bench, how: tuple[str, ...]) -> None:
    names = ("alpha", "beta", "gamma")[: 3 if "-n" not in how else 2]
    tasks(bench, "alpha", "beta", "gamma", "omega")
    with on_terminal(bench, *ROLLOUTS, *how) as live:
        lines = live.until(lambda shown: bool(waiting(*names).search("\n".join(shown))))
        status = next(line for line in lines if "under way" in line)
        assert f"{len(names)} under way · 0 finished · {4 - len(names)} left · time left unknown" in status
        go(bench, "alpha")
        live.until(lambda shown: any("1 finished · 1 healthy" in line for line in shown))
        go(bench)
        assert live.wait() == 0
        seen = live.everything
    assert b"\x1b[?2026h" in live.raw
    (bench.path / "jobs").rename(bench.path / "seen")
    with on_terminal(bench, *ROLLOUTS, *how, "--benchflow-progress=off") as off:
        assert off.wait() == 0
        usual = off.everything
    assert b"\x1b[?2026h" not in off.raw
    letters = re.compile(r"^(alpha|beta|gamma|omega) · waits: ")
    # Workers end in any order, and percentages say how many have.
    rest, other = ([line for line in timeless(each) if not letters.match(line)] for each in (seen, usual))
    assert rest == other
    ends, told = ([line.partition("  ")[0] for line in each if letters.match(line)] for each in (seen, usual))
    assert (ends if "-n" not in how else sorted(ends)) == (told if "-n" not in how else sorted(told))
    assert len(ends) == 4


def test_the_bytes_below_the_last_lines_are_those_of_a_run_without(bench: Bench) -> None:
    tasks(bench, "alpha", "beta")
    (bench.path / "test_own.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('number', range(150))\ndef test_it(number):\n    print('x' * 30)\n",
        "utf-8",
    )
    go(bench)
    how = ("tasks", "test_own.py", *HOW[1:], "--benchflow-concurrency=2", "--color=yes", "-v", "--tb=short")
    screens = []
    for mode in ("live", "off"):
        with on_terminal(bench, *how, f"--benchflow-progress={mode}", "--benchflow-jobs-dir=x" + mode) as run:
            assert run.wait() == 0
            screens.append(timeless([line.replace("x" + mode, "jobs") for line in run.everything]))
            assert not run.screen.cursor.hidden
    assert screens[0] == screens[1]
    assert len(screens[0]) > 200


@pytest.mark.parametrize("how", [("--benchflow-concurrency=2",), ("-n", "2")], ids=["flights", "workers"])
def test_an_interrupt_leaves_a_clean_screen(bench: Bench, how: tuple[str, ...]) -> None:
    tasks(bench, "alpha", "beta")
    with on_terminal(bench, *ROLLOUTS, *how) as run:
        run.until(lambda shown: bool(waiting("alpha", "beta").search("\n".join(shown))))
        run.press(b"\x03")
        assert run.wait() == 2
        text = "\n".join(run.everything)
    assert "under way" not in text
    assert not waiting("alpha").search(text)
    assert text.count("interrupted: jobs/job/") == 2
    assert "KeyboardInterrupt" in text


@pytest.mark.parametrize(("columns", "lines"), [(40, 24), (100, 10), (30, 6)])
def test_a_small_terminal_shows_what_has_room(bench: Bench, columns: int, lines: int) -> None:
    names = [f"task-with-a-long-name-{number:02}" for number in range(12)]
    tasks(bench, *names)
    size = {"columns": columns, "lines": lines}
    with on_terminal(bench, *ROLLOUTS, "--benchflow-concurrency=12", **size) as run:
        shown = run.until(lambda now: below(now)[:1] != [] and below(now)[0].startswith("12 under way"))
        shown = run.until(lambda now: bool(rows(now)) and all("agent" in line for line in rows(now)))
        assert len(below(shown)) <= lines * 2 / 3
        assert all(len(line) < columns for line in below(shown))
        left_out = [line for line in below(shown) if line.startswith("and ")]
        assert left_out == ([] if lines > 20 else [f"and {12 - len(rows(shown))} more"])
        assert lines < 20 or len(rows(shown)) == 12
        above = shown[: shown.index(below(shown)[0])]
        assert [line for line in above if line]  # some of pytest's own stays
        go(bench)
        assert run.wait() == 0
        assert not [line for line in run.everything if "under way" in line]


def test_another_size_is_followed(bench: Bench) -> None:
    tasks(bench, "alpha", "beta", "gamma", "delta")
    with on_terminal(bench, *ROLLOUTS, "--benchflow-concurrency=4", columns=100, lines=30) as run:
        run.until(lambda now: any(line.startswith("───") and len(line) == 99 for line in now))
        run.resize(60, 12)
        run.until(lambda now: any(line.startswith("───") and len(line) == 59 for line in now))
        run.until(lambda now: bool(waiting("alpha", "beta", "gamma", "delta").search("\n".join(now))))
        go(bench)
        assert run.wait() == 0
        assert not [line for line in run.everything if "under way" in line]


def test_a_debugger_has_the_terminal_for_itself(bench: Bench) -> None:
    tasks(bench, "alpha", "beta")
    (bench.path / "test_own.py").write_text("def test_it():\n    breakpoint()\n", "utf-8")
    how = (*HOW[1:], "--benchflow-concurrency=2", "-m", "rollout or not benchflow")
    with on_terminal(bench, "tasks", "test_own.py", *how) as run:
        run.until(lambda now: bool(waiting("alpha", "beta").search("\n".join(now))))
        go(bench, "alpha")
        run.until(lambda now: any("1 finished" in line for line in now))
        # The item of beta is waited for before the test comes, so it is let go; then nothing is under way.
        go(bench)
        run.until(lambda now: any("(Pdb)" in line for line in now))
        before = run.raw
        run.press(b"c\n")
        assert run.wait() == 0
    assert b"\x1b[?2026h" not in run.raw[len(before) :]
    assert not [line for line in run.everything if "under way" in line]


@pytest.mark.parametrize(
    "how",
    [("--benchflow-concurrency=4",), ("-n", "2"), ("-n", "2", "--benchflow-concurrency=2", "-v")],
    ids=["flights", "workers", "both"],
)
def test_plain_lines_are_whole_and_complete(bench: Bench, how: tuple[str, ...]) -> None:
    names = [f"task-{number}" for number in range(6)]
    tasks(bench, *names)
    (bench.path / "test_own.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('number', range(60))\ndef test_it(number):\n    print('mine')\n",
        "utf-8",
    )
    go(bench)
    done = bench.run("tasks", "test_own.py", *HOW[1:], *how)
    assert done.ret == 0, done.outlines
    told = [line for line in done.outlines if "benchflow: begun" in line or "benchflow: ended" in line]
    begun = sorted(f"benchflow: begun: {name} · waits" for name in names)
    assert sorted(line for line in told if "begun" in line) == begun
    ended = [re.fullmatch(r"benchflow: ended: (\S+) · waits: unsolved  \d+\.\d s", line) for line in told]
    assert sorted(match[1] for match in ended if match) == names
    assert len(told) == 12
    for name in names:
        assert [name in line for line in told].count(True) == 2
        first, last = (line for line in told if name in line)
        assert ("begun" in first, "ended" in last) == (True, True)
    assert "mine" not in done.stdout.str()


def test_what_cannot_be_drawn_is_said_once_and_told_plainly(bench: Bench) -> None:
    tasks(bench, "alpha")
    go(bench)
    done = bench.run(*ROLLOUTS, "--benchflow-progress=live", "--junitxml=report.xml")
    assert done.ret == 0
    said = [line for line in done.outlines if "--benchflow-progress=live" in line]
    assert said == ["benchflow: --benchflow-progress=live: standard output is no terminal; plain lines instead"]
    assert "benchflow: begun: alpha · waits" in done.outlines
    assert "\x1b" not in done.stdout.str()
    assert "under way" not in (bench.path / "report.xml").read_text("utf-8")


def test_nothing_is_said_of_one_at_a_time_or_where_it_is_off(bench: Bench) -> None:
    tasks(bench, "alpha")
    go(bench)
    for how in ((), ("--benchflow-concurrency=2", "-q"), ("--benchflow-concurrency=2", "--benchflow-progress=off")):
        done = bench.run(*ROLLOUTS, *how)
        assert done.ret == 0
        assert "benchflow: begun" not in done.stdout.str()
    bench.ini("benchflow_progress = plain")
    assert "benchflow: begun: alpha · waits" in bench.run(*ROLLOUTS).outlines
    bench.refused(*ROLLOUTS, "--benchflow-progress=loud", says="'loud'; it takes one of: off, plain, live")
    assert not list((bench.path / "jobs").rglob("*progress*"))


def test_a_worker_that_is_killed_has_nothing_under_way(bench: Bench) -> None:
    tasks(bench, "alpha", "beta")
    with on_terminal(bench, *ROLLOUTS, "-n", "2", "--max-worker-restart=0", lines=30) as run:
        run.until(lambda now: bool(waiting("alpha", "beta").search("\n".join(now))))
        workers = [int(pid) for pid in _children(run.process.pid)]
        os.kill(workers[0], signal.SIGKILL)
        run.until(lambda now: any(line.startswith("1 under way") for line in now))
        go(bench)
        run.wait()
        assert not [line for line in run.everything if "under way" in line]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
