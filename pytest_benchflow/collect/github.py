"""Hand what a session's rollouts came to on to GitHub Actions, where pytest runs there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

    from pytest_benchflow.report.summary import Summary
    from pytest_benchflow.report.terminal import RolloutReport


def tell_of_rollouts(
    terminal: pytest.TerminalReporter, config: pytest.Config, report: RolloutReport, notes: Sequence[str]
) -> None:
    """Tell of the rollouts that ran; `notes` are lines about all of them."""
    from pytest_benchflow.report.github import is_asked, tell, told_of
    from pytest_benchflow.report.text import counted

    if not is_asked() or _is_worker(config):
        return
    told = [told_of(summary, config.invocation_params.dir, config.rootpath) for summary in report.summaries]
    left_out = [f"{word}: {counted(count, 'cell')}" for word, count in report.left_out.items() if count]
    for line in tell(told, notes=[*left_out, *notes]):
        terminal.write_line(line)


def tell_of_reviews(
    terminal: pytest.TerminalReporter,
    summaries: Sequence[Summary],
    findings: Mapping[str, Sequence[Mapping[str, Any]]],
    notes: Sequence[str],
) -> None:
    """Tell of rollouts that were reviewed; `findings` are those of each by its directory."""
    from pytest_benchflow.report.github import is_asked, tell
    from pytest_benchflow.report.markdown import Told

    if is_asked() and not _is_worker(terminal.config):
        told = [Told(summary, [dict(each) for each in findings.get(summary.directory, ())]) for summary in summaries]
        for line in tell(told, notes=notes):
            terminal.write_line(line)


def _is_worker(config: pytest.Config) -> bool:
    """Tell a worker of xdist, whose terminal nobody reads, from the process that leads."""
    return hasattr(config, "workerinput")
