"""Show rollouts in pytest's terminal: their phases as they run, how they ended, and a table of all of them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from pytest_benchflow.report.attach import outcome_of, role_of, summary_of
from pytest_benchflow.report.summary import COLUMNS, Summary, evidence_line
from pytest_benchflow.report.text import one_line, seconds_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_benchflow.settings import Settings

# The phases worth a line, and what people call them.
_PHASES = {
    "agent_setup": "install",
    "environment_setup": "sandbox",
    "agent_execution": "agent",
    "verifier": "verifier",
    "records": "records",
}
_STATUS = {
    "solved": ("solved", "S", ("SOLVED", {"green": True})),
    "unsolved": ("unsolved", "u", ("UNSOLVED", {"yellow": True})),
    "timeout": ("timeout", "t", ("TIMEOUT", {"yellow": True})),
}

ALL_SKIPPED = "no rollout could run here, so this run fails: every one was skipped (pytest -rs shows the reasons)"


class RolloutReport:
    """What one session tells about its rollouts; under xdist it lives in the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._rollouts: dict[str, Summary] = {}
        self._skipped: dict[str, bool] = {}
        self._shown: list[str] = []

    @property
    def all_skipped(self) -> bool:
        """Tell whether there were items of rollouts, every one was skipped, and no rollout came of any."""
        return bool(self._skipped) and all(self._skipped.values()) and not self._rollouts

    def phase(self, task: str, agent: str, phase: str) -> None:
        """Show that a rollout enters a phase: a line each with -v, else all on one line; nothing with -q."""
        verbosity = self._config.get_verbosity()
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        name = _PHASES.get(phase)
        head = f"{one_line(task)} · {one_line(agent)}"
        if terminal is None or verbosity < 0 or name is None or self._shown == [head, name]:
            return
        goes_on = self._shown[:1] == [head]
        self._shown = [head, name]
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if verbosity > 0:
                terminal.write_line(f"{head} · {name}…")
            elif goes_on:
                terminal.write(f" · {name}", flush=True)
            else:
                terminal.ensure_newline()
                terminal.write(f"{head}: {name}", flush=True)

    def hear(self, report: pytest.TestReport) -> None:
        """Take note of a report, and show the evidence of a rollout that it is the first to tell of."""
        if role_of(report):
            self._skipped[report.nodeid] = self._skipped.get(report.nodeid, False) or report.skipped
        summary = summary_of(report)
        if summary is None or summary.directory in self._rollouts:
            return
        self._rollouts[summary.directory] = summary
        self._shown = []
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None or self._config.get_verbosity() < 1:
            return
        head = f"{one_line(summary.task)} · {one_line(summary.agent)}"
        if self._config.getoption("numprocesses", None):
            terminal.write_line(f"{head} · {_phases(summary)}")
        terminal.write_line(f"{head} · {summary.outcome} · {evidence_line([summary])}")

    def write(self, terminal: pytest.TerminalReporter) -> None:
        """Write the table of all rollouts and the evidence line below it."""
        if self.all_skipped:
            terminal.write_line(ALL_SKIPPED, red=True)
        if not self._rollouts:
            return
        summaries = [self._rollouts[directory] for directory in sorted(self._rollouts)]
        terminal.write_sep("=", "rollouts")
        for line in table([COLUMNS, *(summary.cells() for summary in summaries)]):
            terminal.write_line(line)
        terminal.write_line(evidence_line(summaries))
        for summary in summaries:
            if summary.kept:
                terminal.write_line(f"kept: the sandbox of {one_line(summary.directory)} in {one_line(summary.kept)}")


def status_of(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, Any] | None:
    """Return the category, letter and word of a rollout item that passed; None for everything else."""
    return _STATUS.get(outcome_of(report) or "")


def header(settings: Settings) -> str:
    """Say in a line what will run."""
    agents, models = (", ".join(map(one_line, settings.agents)), ", ".join(map(one_line, settings.models)))
    trials = f" · {settings.trials} trials" if settings.trials > 1 else ""
    place = f"{settings.sandbox} · {settings.jobs_dir / settings.job_name}"
    return f"benchflow: {agents} · {models}{trials} · {one_line(place)}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out rows in columns; the last one is never cut or padded, so that paths can be copied."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]) for row in rows]


def _phases(summary: Summary) -> str:
    return " · ".join(f"{_PHASES[name]} {seconds_text(seconds)}" for name, seconds in summary.phases if name in _PHASES)
