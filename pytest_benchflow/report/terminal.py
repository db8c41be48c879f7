"""Show rollouts in pytest's terminal: a line each as it runs, and a table of all of them at the end."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow import registry
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.report.attach import left_out_of, outcome_of, role_of, summary_of, unstarted_of
from pytest_benchflow.report.failure import JUDGED
from pytest_benchflow.report.summary import Summary, cost_lines, evidence_line, history_lines, job_lines, warning_lines
from pytest_benchflow.report.table import line, table, wrapped
from pytest_benchflow.report.text import one_line, seconds_text

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    import pytest

    from pytest_benchflow.settings import Settings

# The phases worth a word, and what people call them.
_PHASES = {
    "agent_setup": "install",
    "environment_setup": "sandbox",
    "agent_execution": "agent",
    "verifier": "verifier",
}
_COLOURS = {"solved": {"green": True}, "unsolved": {"yellow": True}, "timeout": {"yellow": True}}
_UNHEALTHY = {"red": True}
_LETTERS = {"solved": "S", "unsolved": "u", "timeout": "t"}
_SKILLS = {"with": "with-skill", "without": "no-skill"}
# In that few seconds nothing was installed: what is there already was found.
_FOUND_SEC = 2.0

_REASONS = 5
_GAP = " · "
_PROGRESS = re.compile(r"\[ *\d+(?:%|/\d+)\]\Z")
_PERCENTAGE = 9  # columns that pytest wants for its own


class RolloutReport:
    """What one session tells about its rollouts; under xdist it lives in the controller."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._rollouts: dict[str, Summary] = {}
        self._skipped: dict[str, bool] = {}
        self._reasons: dict[str, str] = {}  # why a cell left no rollout, by file and cell of the items that say so
        self._unstarted: dict[str, str] = {}  # the same, where it could run and was not started
        self.failed_unhealthy = 0  # failed reports of items whose rollout is unhealthy, or was none
        self.failed_unsolved = 0  # the same, whose rollout is healthy and not what the gate asks for
        self._shown: list[str] = []  # the rollout whose line is open, and the phases it has shown
        self._told: set[str] = set()  # items whose line says how they ended
        self._awaited: set[str] = set()  # directories of rollouts whose line waits for their letter
        self._line_open = False  # under xdist: the line of a rollout awaits its percentage
        self._interjected = False  # what was written last is a whole line of another's

    @property
    def all_skipped(self) -> bool:
        """Tell whether there were items of rollouts, every one was skipped, and no rollout came of any."""
        return bool(self._skipped) and all(self._skipped.values()) and not self._rollouts

    @property
    def falls_short(self) -> bool:
        """Tell whether the run fails though no item did: no rollout ran, some did not start, or records are gone."""
        return self.all_skipped or bool(self._unstarted) or bool(self.gone)

    @property
    def gone(self) -> list[Summary]:
        """Return the rollouts that were told of and are no longer on disk; those of other machines come later."""
        if self._config.pluginmanager.hasplugin("benchflow-far-workers"):
            return []
        root = self._config.invocation_params.dir
        return [each for each in self.summaries if not (root / each.directory / "result.json").exists()]

    @property
    def summaries(self) -> list[Summary]:
        """Return what the rollouts came to, in the order of their directories."""
        return [self._rollouts[directory] for directory in sorted(self._rollouts)]

    @property
    def left_out(self) -> dict[str, int]:
        """Return how many cells left no rollout, by why: they cannot run here, or were not started."""
        return {"skipped": len(self._reasons), "not started": len(self._unstarted)}

    @property
    def unstarted(self) -> bool:
        """Tell whether rollouts that could run here were not started."""
        return bool(self._unstarted)

    @property
    def _terminal(self) -> Any:
        """Return pytest's terminal reporter; None where it is off."""
        return self._config.pluginmanager.get_plugin("terminalreporter")

    @property
    def _verbosity(self) -> int:
        return self._config.get_verbosity()

    @property
    def _distributed(self) -> bool:
        return bool(self._config.getoption("dist", "no") != "no")

    def starting(self) -> Generator[None]:
        """Keep pytest from naming the file of a rollout's item: the rollout has a line of its own."""
        terminal = self._terminal
        if terminal is None or self._distributed:
            yield
            return
        usual, terminal.showfspath = terminal.showfspath, False
        yield
        terminal.showfspath = usual

    def phase(self, head: str, phase: str, step: str | None) -> None:
        """Show that a rollout enters a phase: a line each with -v, else all on one line; nothing with -q."""
        terminal, name = self._terminal, _PHASES.get(phase)
        again = self._shown[:1] == [head] and name == "sandbox" and name in self._shown
        if terminal is None or self._verbosity < 0 or name is None or again:
            return
        word = f"{one_line(step)}: {name}" if step else name
        goes_on = self._shown[:1] == [head]
        self._shown = [*self._shown, word] if goes_on else [head, word]
        capture: Any = self._config.pluginmanager.get_plugin("capturemanager")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if self._verbosity > 0:
                self._begin_line(f"{head} · {word}…")
            elif goes_on:
                self._go_on(word)
            else:
                self._begin_line(f"{head}: {word}")

    def hear(self, report: pytest.TestReport) -> None:
        """Take note of a report, and tell how a rollout ended that it is the first to tell of."""
        role, summary = role_of(report), summary_of(report)
        if self._line_open and report.nodeid not in self._told and (report.when == "call" or not report.passed):
            self._end_line()
        if role:
            self._count(report, role, summary)
        for reasons, reason in ((self._reasons, left_out_of(report)), (self._unstarted, unstarted_of(report))):
            if reason:
                file, _, name = report.nodeid.rpartition("::")
                reasons[f"{file}[{name.partition('[')[2]}"] = one_line(reason)
        if summary is not None and summary.directory not in self._rollouts:
            self._rollouts[summary.directory] = summary
            if self._distributed and role == "rollout" and report.when == "setup" and report.passed:
                # Its letter comes with the next report, before which another worker's may come.
                self._awaited.add(summary.directory)
            elif self._terminal is not None and self._verbosity >= 0:
                self._tell(report, summary)
            self._shown = []
        elif summary is not None and summary.directory in self._awaited:
            self._awaited.remove(summary.directory)
            if self._terminal is not None and self._verbosity >= 0:
                self._tell(report, summary)
        elif role == "rollout" and report.nodeid not in self._told and (report.when == "call" or not report.passed):
            if report.failed and self._shown:
                self._go_on("error", **_UNHEALTHY)
                self._shown = []
                self._told.add(report.nodeid)
            else:
                self._name_file(report)
        self._name_again(report, role)

    def _count(self, report: pytest.TestReport, role: str, summary: Summary | None) -> None:
        self._skipped[report.nodeid] = self._skipped.get(report.nodeid, False) or report.skipped
        if report.failed and not hasattr(report, "wasxfail"):
            if summary is None or not summary.healthy:
                self.failed_unhealthy += 1
            elif role == "rollout" and summary.agent not in JUDGED:
                self.failed_unsolved += 1

    def announce(self) -> None:
        """Say what runs, under xdist, where it is known only when a worker tells of a rollout."""
        if self._terminal is not None and self._verbosity >= 0:
            self._end_line()
            self._terminal.write_line(header(self._settings))

    def unheard_of(self, job_dir: Path, session_id: str) -> list[str]:
        """Return the rollouts of this session that no report has told of: what became of each, and its directory."""
        told = {summary.name for summary in self._rollouts.values()}
        root = self._config.invocation_params.dir
        found = []
        for file in sorted(job_dir.glob("*/config.json")):
            try:
                ours = read_json(file).get("session_id") == session_id
            except RecordError:
                continue
            if ours and file.parent.name not in told:
                place = file.parent.relative_to(root) if file.is_relative_to(root) else file.parent
                found.append(f"{_fate(file.parent)}: {place}")
        return found

    def of_the_job(self, job_dir: Path) -> list[str]:
        """Return a line about the whole job, where more of it was planned than this session tells of."""
        try:
            summary = read_json(job_dir / "summary.json")
        except RecordError:
            return []
        return job_lines(summary, len(self._rollouts))

    def status_of(self, report: pytest.TestReport) -> tuple[str, str, Any] | None:
        """Return the category, letter and word of a rollout's item; None for everything else.

        There is no letter where a line has told it.
        """
        told = report.nodeid in self._told
        outcome = outcome_of(report)
        if outcome is not None:
            return outcome, "" if told else _LETTERS[outcome], (outcome.upper(), _COLOURS[outcome])
        if role_of(report) == "rollout" and report.when == "call" and report.failed and told:
            summary = summary_of(report)
            return "failed", " F" if summary and summary.healthy else "", ("FAILED", _UNHEALTHY)
        if role_of(report) == "rollout" and report.when == "setup" and report.failed and told:
            return "error", "", ("ERROR", _UNHEALTHY)
        return None

    def write(
        self,
        terminal: pytest.TerminalReporter,
        *,
        incomplete: str | None = None,
        cut: Sequence[str] = (),
        job: Sequence[str] = (),
    ) -> None:
        """Write the table of all rollouts, the evidence line below it, and where to find them.

        `incomplete` is why the job's own files could not be written; `cut` are lines about rollouts that no item told
        of, `job` those about the whole job.
        """
        if self._rollouts:
            self._write_table(terminal)
        for text in job:
            terminal.write_line(text)
        if self._reasons:
            self._write_reasons(terminal)
        if self._unstarted:
            count, reason = len(self._unstarted), next(iter(self._unstarted.values()))
            terminal.write_line(
                f"this run fails, for {count} of {count + len(self._rollouts)} rollouts did not run: {reason}", red=True
            )
        for summary in self.gone:
            terminal.write_line(
                f"gone: {one_line(summary.directory)}, which was removed while this run went on: it fails", red=True
            )
        if incomplete:
            terminal.write_line(one_line(incomplete), red=True)
        for directory in cut:
            terminal.write_line(one_line(directory), red=True)

    def _write_reasons(self, terminal: pytest.TerminalReporter) -> None:
        if self.all_skipped:
            terminal.write_line("no rollout could run here, so this run fails: every one was skipped", red=True)
        else:
            asked = len(self._reasons) + len(self._rollouts)
            terminal.write_line(f"skipped: {len(self._reasons)} of {asked} rollouts, which cannot run here")
        reasons = list(dict.fromkeys(self._reasons.values()))
        for reason in reasons[:_REASONS]:
            terminal.write_line(f"  {reason}")
        if len(reasons) > _REASONS:
            terminal.write_line(f"  and {len(reasons) - _REASONS} other reasons, which pytest -rs shows")

    def _write_table(self, terminal: pytest.TerminalReporter) -> None:
        summaries = self.summaries
        terminal.write_sep("=", "rollouts")
        width = self._config.get_terminal_writer().fullwidth
        rows = table(summaries, width)
        terminal.write_line(line(rows[0]))
        for summary, row in zip(summaries, rows[1:], strict=True):
            before, _, after = line(row).partition(row["verdict"])
            terminal.write(before)
            terminal.write(row["verdict"], **_colour(summary))
            terminal.write(f"{after}\n")
        for part in wrapped(evidence_line(summaries), width):
            terminal.write_line(part)
        for text in (*cost_lines(summaries), *history_lines(summaries)):
            terminal.write_line(text)
        for text in warning_lines(summaries):
            terminal.write_line(text, yellow=True)
        self._write_places(terminal, summaries, listed="directory" in rows[0])

    def _write_places(self, terminal: pytest.TerminalReporter, summaries: Sequence[Summary], *, listed: bool) -> None:
        """Name the job's directory, and of the rollouts that a reader may want to open those that the table does not.

        Nobody looks into one of the agent nop that ended as it should.
        """
        places = dict.fromkeys(summary.directory.rpartition("/")[0] for summary in summaries)
        terminal.write_line(f"directory: {', '.join(one_line(place) for place in places)}")
        for summary in summaries:
            expected = "unsolved" if summary.agent == "nop" else "solved"
            if not listed and summary.outcome != expected:
                terminal.write_line(f"  {summary.outcome}: {one_line(summary.name)}")
        for summary in summaries:
            if summary.kept:
                terminal.write_line(f"kept: the sandbox of {one_line(summary.name)} in {one_line(summary.kept)}")

    def _tell(self, report: pytest.TestReport, summary: Summary) -> None:
        """Write how a rollout ended: onto its line, or in one of its own where none is open."""
        terminal, verbose = self._terminal, self._verbosity > 0
        role = role_of(report)
        if verbose or not self._shown:
            self._begin_line(f"{self._head(summary)}: {' · '.join(_phases(summary, timed=verbose))}")
        took = f"  {seconds_text(summary.seconds)}"
        self._go_on(summary.outcome, also=len(took), **_colour(summary))
        terminal.write(took, flush=True)
        if verbose:
            for part in wrapped(evidence_line([summary]), self._config.get_terminal_writer().fullwidth - 2):
                terminal.write(f"\n  {part.strip()}")
        if role == "rollout":
            self._told.add(report.nodeid)
        if self._distributed:
            self._line_open = True
            if verbose:
                self._end_line()
        elif role != "rollout" and not verbose:
            terminal.currentfspath = None
            self._name_file(report)

    def _head(self, summary: Summary) -> str:
        return head(
            self._settings,
            task=summary.task,
            agent=summary.agent,
            model=summary.model,
            skills=summary.skills,
            trial=summary.trial,
        )

    def _end_line(self) -> None:
        """End the line that is being written, with its percentage."""
        terminal, self._line_open = self._terminal, False
        # pytest offers no public way to end a line as it does itself, or to tell that it has.
        ended = self._just_named or _PROGRESS.search(terminal._tw._current_line)
        if self._width and self._verbosity == 0 and not ended and terminal._show_progress_info:
            terminal._write_progress_information_filling_space()
        if self._width or not (self._distributed or self._interjected):
            terminal.write("\n")
        self._interjected = False
        terminal.currentfspath = None

    def interject(self, text: str) -> None:
        """Write a line of its own, wherever pytest is; what was begun goes on in a line after it."""
        if self._width:
            self._end_line()
        self._terminal.write_line(text)
        self._terminal.currentfspath, self._interjected = None, True
        self._shown = []

    def _begin_line(self, text: str) -> None:
        """Write a line after pytest's own; pytest ends it when it has more to say."""
        terminal = self._terminal
        self._end_line()
        terminal.write(text, flush=True)
        terminal.currentfspath = -2  # what pytest itself says for: the line is not empty

    def _go_on(self, text: str, *, also: int = 0, **colour: bool) -> None:
        """Write a part of a line after the one before, on a new one where this has no room left; `also` follows it.

        Where pytest finds no room for its percentage it would begin a new line, and leave that empty.
        """
        kept = _PERCENTAGE if self._verbosity == 0 else 0
        room = self._config.get_terminal_writer().fullwidth - kept
        fits = self._width + len(_GAP) + len(text) + also <= room
        self._terminal.write(_GAP if fits else f"{_GAP.rstrip()}\n  ")
        self._terminal.write(text, flush=True, **colour)

    def _name_file(self, report: pytest.TestReport) -> None:
        """Let pytest name the file of an item, whose letter follows."""
        if self._terminal is not None and self._verbosity == 0 and not self._distributed:
            self._terminal.write_fspath_result(report.nodeid, "")

    def _name_again(self, report: pytest.TestReport, role: str | None) -> None:
        """Name the file of an item whose letter follows, where another's line came after pytest did."""
        if role == "rollout" or (report.passed and report.when != "call"):
            return
        terminal, interjected = self._terminal, self._interjected
        self._interjected = False
        if interjected and terminal.currentfspath is None and self._verbosity == 0 and not self._distributed:
            terminal.currentfspath = self._config.rootpath / report.nodeid.partition("::")[0]
            terminal.write(f"{os.path.relpath(terminal.currentfspath, terminal.startpath)} ")

    @property
    def _just_named(self) -> bool:
        """Tell whether pytest has named a file in this line, and nothing else."""
        place, start = self._terminal.currentfspath, self._terminal.startpath
        return isinstance(place, Path) and self._width == len(os.path.relpath(place, start)) + 1

    @property
    def _width(self) -> int:
        """Return how wide the line is that is being written."""
        return self._config.get_terminal_writer().width_of_current_line


def head(settings: Settings, *, task: str, agent: str, model: str, skills: str, trial: int | None) -> str:
    """Name a rollout by its task, its agent, and whatever else is not the same for all of the run."""
    parts = [task.rpartition("/")[2], agent]
    parts += [model] if len(settings.all_models) > 1 and model != "none" else []
    parts += [_SKILLS.get(skills, skills)] if settings.both_skill_modes else []
    parts += [f"trial {trial}"] if settings.most_trials > 1 else []
    return " · ".join(map(one_line, parts))


def phase_name(phase: str) -> str:
    """Return what people call a phase, "starting" before the first."""
    return _PHASES.get(phase) or phase.replace("_", " ").replace("environment ", "") or "starting"


def header(settings: Settings, notes: Sequence[str] = ()) -> str:
    """Say in a line what will run, in one more for each agent that is none of the catalogue's where it is from.

    `notes` are said below, in a line each.
    """
    agents, models = (", ".join(map(one_line, settings.all_agents)), ", ".join(map(one_line, settings.all_models)))
    trials = f" · {settings.most_trials} trials" if settings.most_trials > 1 else ""
    place = f"{settings.sandbox} · {settings.jobs_dir / settings.job_name}"
    lines = [f"benchflow: {agents} · {models}{trials} · {one_line(place)}"]
    theirs = ((name, registry.declared().get(name.partition("@")[0])) for name in settings.all_agents)
    lines += [f"benchflow: {one_line(name)} is that of {one_line(each.file)}" for name, each in theirs if each]
    lines += [f"benchflow: {one_line(note)}" for note in notes]
    return "\n".join(lines)


def _fate(rollout: Path) -> str:
    """Say what became of a rollout that was in flight when its session ended."""
    try:
        result = read_json(rollout / "result.json")
    except RecordError:
        return "interrupted"
    return "interrupted" if result.get("error_category") == "interrupted" else "ended, and not reported"


def _colour(summary: Summary) -> dict[str, bool]:
    return _COLOURS.get(summary.outcome, _UNHEALTHY)


def _phases(summary: Summary, *, timed: bool) -> list[str]:
    if summary.earlier:
        return ["kept"]
    seconds = {name: value for name, value in summary.phases if name in _PHASES}
    if len(seconds) > 1 and seconds.get("agent_setup", _FOUND_SEC) < _FOUND_SEC:
        del seconds["agent_setup"]
    return [f"{_PHASES[name]} {seconds_text(value)}" if timed else _PHASES[name] for name, value in seconds.items()]
