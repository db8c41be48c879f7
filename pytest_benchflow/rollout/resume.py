"""Take up a job again: keep what stands, fill what is missing, and refuse what would mix two experiments in one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._check import plain
from pytest_benchflow.errors import BenchflowError, RecordError, UsageError
from pytest_benchflow.records.coverage import runs_of
from pytest_benchflow.records.journal import read_json
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rollout import Rollout
from pytest_benchflow.records.values import mapping, sequence
from pytest_benchflow.rollout.asked import shown_variables
from pytest_benchflow.rollout.cell import resolve_agent, secret_values, settled, task_of
from pytest_benchflow.rollout.matrix import agent_digest
from pytest_benchflow.rollout.plan import plan
from pytest_benchflow.rollout.skills import skill_mode
from pytest_benchflow.tasks.load import is_task, load_task, task_digest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.records.rundir import RunDir
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.settings import Settings

# What may be accepted to differ. The rest of what decides a result never may: it would be another experiment.
ACCEPTABLE = ("agent_version", "agent_env", "agent_network", "tasks")
_LISTED = 8
_PARTS = 4  # joints in a rollout's name, where no other task has the same
_WIDEST = 44
_ANOTHER = "or another --benchflow-job-name"
_HOW = {
    "task_digest": f"restore the task, {_ANOTHER}",
    "agent": f"pass the job's agents, {_ANOTHER}",
    "model": f"pass the job's models, {_ANOTHER}",
    "reasoning_effort": f"pass the job's --benchflow-reasoning-effort, {_ANOTHER}",
    "skill_mode": f"pass the job's --benchflow-skills, {_ANOTHER}",
    "rollout": "run all of the job's tasks: two share a name, and -k changes which",
    "holds": "move it out of the job, or give it its own name again",
    "tasks": "leave them out with -k, or pass --benchflow-accept-change=tasks to add them to the job",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was: `was` and `now` are texts, `about` says of which task, agent or rollout."""

    what: str
    about: str
    was: str
    now: str

    def as_row(self) -> tuple[str, str, str, str]:
        """Return the row of the table that people read."""
        what = {"tasks": "tasks", "holds": "rollout_name"}.get(self.what, self.what)
        name = f"{what} of {self.about}" if self.about else what
        usual = f"pass --benchflow-accept-change={self.what} to mix them, {_ANOTHER}"
        return (_cut(name), _cut(self.was), _cut(self.now), _HOW.get(self.what, usual))


@dataclass(slots=True)
class _Job:
    """What a job's earlier sessions planned, and what its rollouts were asked to be."""

    planned: dict[str, dict[str, Any]] = field(default_factory=dict)  # the matrix, by the rollout's name
    tasks: dict[str, str] = field(default_factory=dict)  # digest by path, the latest
    agents: dict[str, str | None] = field(default_factory=dict)  # digest of the catalogue's entry, the latest
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)  # config.json by the directory's name

    def shown(self, what: str, agent: str) -> set[str]:
        """Return how something was asked for in the rollouts of an agent, as texts."""
        return {_shown(what, each) for each in self.asked.values() if each.get("agent") == agent}


class Resumption:
    """One resumed job, as it lies on disk when its session opens; `mode` is one of settings.RESUMES."""

    def __init__(self, job_dir: Path, settings: Settings, session_id: str) -> None:
        self._job_dir = job_dir
        self._settings = settings
        self._session_id = session_id
        self._accepted = frozenset(settings.accept_change)
        self._job: _Job | None = None
        self._digests: dict[Path, str] = {}

    def check(self, planned: Iterable[RolloutConfig] | None) -> None:
        """Refuse to go on where something that decides results has changed. Raises: UsageError with a table.

        `planned` are cells; None: they are not known here, and every task of the job is looked at.
        """
        cells: list[RolloutConfig] = []
        for cell in planned if planned is not None else self._cells_of_job():
            with suppress(BenchflowError):  # one that cannot run, and whose item says so
                cells.append(settled(cell))
        found = dict.fromkeys(each for cell in cells for each in self.differences(cell))
        if found:
            raise UsageError(_table(self._job_dir, list(found)))

    def keeps(self, cell: RolloutConfig, rundir: RunDir) -> bool:
        """Tell whether the rollout of a settled cell stands as it is. Raises: UsageError when it must not be filled."""
        rollout = Rollout(rundir.path)
        if _asked(rollout).get("session_id") == self._session_id:
            return False
        found = self.differences(cell)
        if found:
            raise UsageError(_table(self._job_dir, found))
        return stands(rollout, str(self._settings.resume))

    def differences(self, cell: RolloutConfig) -> list[Difference]:
        """Return what is not as it was for a settled cell, without what is accepted."""
        task = task_of(cell)
        if task.path not in self._digests:
            self._digests[task.path] = task_digest(task)
        digest = self._digests[task.path][:12]
        found = [*_of_plan(self._read(), cell, digest), *_of_agent(self._read(), cell)]
        found += _of_rollout(self._read().asked.get(cell.rollout_name(task), {}), cell, digest)
        return list(dict.fromkeys(each for each in found if each.what not in self._accepted))

    def must_exist(self) -> None:
        """Refuse to begin a job of a name that may be mistyped. Raises: UsageError naming those there are."""
        if self._job_dir.is_dir():
            return
        jobs = self._job_dir.parent
        known = sorted(path.parent.name for path in jobs.glob("*/job.json")) if jobs.is_dir() else []
        there = f"{jobs} has {', '.join(known[:_LISTED])}" if known else f"{jobs} has none"
        raise UsageError(
            f"{self._job_dir} is no job that could be resumed; {there}. Name one with --benchflow-job-name, or leave "
            "--benchflow-resume out to begin it"
        )

    def _cells_of_job(self) -> list[RolloutConfig]:
        cells: list[RolloutConfig] = []
        for path in dict.fromkeys(str(entry.get("task_path")) for entry in self._read().planned.values()):
            place = Path(path)
            if is_task(place):
                task = load_task(place)
                shared = any(name.count("__") > _PARTS for name in self._names_of(path))
                cells += plan(self._settings, task, distinguish=shared)
        return cells

    def _names_of(self, task_path: str) -> list[str]:
        return [name for name, entry in self._read().planned.items() if entry.get("task_path") == task_path]

    def _read(self) -> _Job:
        if self._job is None:
            self._job = _read_job(self._job_dir, self._session_id)
        return self._job


def stands(rollout: Rollout, mode: str) -> bool:
    """Tell whether a rollout on disk is kept under a mode of --benchflow-resume.

    One without a result that can be read is missing in each of them; so is one that does not tell what was asked.
    """
    try:
        finished = bool(rollout.config) and rollout.result.get("verdict") is not None
        scored, healthy = rollout.reward is not None, rollout.healthy
    except (RecordError, OSError):
        return False
    return finished and {"missing": True, "unscored": scored, "unhealthy": scored and healthy}[mode]


def _read_job(job_dir: Path, session_id: str) -> _Job:
    """Read what earlier sessions left; `session_id` is the one that resumes, whose other processes may have begun."""
    job = _Job()
    try:
        runs = runs_of(read_json(job_dir / "job.json"))
    except RecordError:
        runs = []  # killed before it was written; what is no job.json of ours is refused where it is written
    for run in (each for each in runs if each.get("session_id") != session_id):
        for entry in map(mapping, sequence(run.get("matrix"))):
            job.planned[str(entry.get("rollout"))] = entry
        digests = mapping(run.get("digests"))
        job.tasks |= {str(path): str(digest) for path, digest in mapping(digests.get("tasks")).items()}
        job.agents |= mapping(digests.get("agents"))
    for path in sorted(job_dir.glob("*/config.json")):
        asked = _asked(Rollout(path.parent))
        if asked and asked.get("session_id") != session_id:
            job.asked[path.parent.name] = asked
    return job


def _of_plan(job: _Job, cell: RolloutConfig, digest: str) -> list[Difference]:
    """Compare a cell with what the job planned: a further trial is no difference."""
    if not job.planned:
        return []
    task, entries = task_of(cell), job.planned.values()
    ours = [entry for entry in entries if entry.get("task_path") == str(task.path) or entry.get("task") == task.name]
    if not ours:
        return [Difference("tasks", "", _words({entry.get("task") for entry in entries}), f"{task.name} too")]
    digests = {job.tasks[path][:12] for entry in ours if (path := str(entry.get("task_path"))) in job.tasks}
    found = [] if digests <= {digest} else [Difference("task_digest", task.name, _words(digests), digest)]
    for what, now in (("agent", cell.agent_name), ("model", cell.model), ("skills", cell.skills)):
        before, ours = ours, [entry for entry in ours if entry.get(what) == now]
        if not ours:
            name = "skill_mode" if what == "skills" else what
            return [*found, Difference(name, "", _words({entry.get(what) for entry in before}), now)]
    efforts = {entry["reasoning_effort"] for entry in ours if "reasoning_effort" in entry}
    if efforts and cell.reasoning_effort not in efforts:
        found.append(Difference("reasoning_effort", "", _words(map(_effort, efforts)), _effort(cell.reasoning_effort)))
    # Where two tasks share a name, that of a rollout has a part more; whether they do depends on what is selected.
    names, name = {str(entry.get("rollout")) for entry in ours}, cell.rollout_name(task)
    parts = {each.count("__") for each in names}
    return found if name.count("__") in parts else [*found, Difference("rollout", task.name, min(names), name)]


def _of_agent(job: _Job, cell: RolloutConfig) -> list[Difference]:
    """Compare what a cell's agent is and may with all rollouts of the job: what was once accepted is in it."""
    agent, found = resolve_agent(cell.agent), []
    before, after = job.agents.get(cell.agent_name), agent_digest(cell.agent_name)
    if cell.agent_name in job.agents and before != after:
        was, now = (str(each)[:12] for each in (before, after))
        found.append(Difference("agent_version", cell.agent_name, f"catalogue entry {was}", f"catalogue entry {now}"))
    now_asked = {
        "agent_version": agent.version,
        "agent_env": Redactor(secret_values(cell.agent_env)).value(shown_variables(cell.agent_env)),
        "network": {"agent_from": cell.agent_network},
    }
    for what in ("agent_version", "agent_env", "agent_network"):
        known, now = job.shown(what, agent.name), _shown(what, now_asked)
        if known and now not in known:
            found.append(Difference(what, agent.name, _words(known), now))
    return found


def _of_rollout(asked: Mapping[str, Any], cell: RolloutConfig, digest: str) -> list[Difference]:
    """Compare a cell with config.json of the rollout that lies in its directory."""
    if not asked:
        return []
    task = task_of(cell)
    name = cell.rollout_name(task)
    holds = str(asked.get("rollout_name", name))
    if holds != name:
        return [Difference("holds", name, name, f"it holds {holds}")]
    now: dict[str, Any] = {
        "task_digest": digest,
        "agent": resolve_agent(cell.agent).name,
        "model": cell.model,
        "reasoning_effort": cell.reasoning_effort,
    }
    with suppress(BenchflowError):  # a cell that cannot run, and whose item says so
        now["skill_mode"] = skill_mode(cell.skills, task)
    was = {**asked, "task_digest": str(asked.get("task_digest"))[:12]}
    about = {"task_digest": task.name, "skill_mode": task.name}
    return [
        Difference(
            what, about.get(what, ""), *map(_effort if what == "reasoning_effort" else _text, (was.get(what), value))
        )
        for what, value in now.items()
        if was.get(what) != value
    ]


def _shown(what: str, asked: Mapping[str, Any]) -> str:
    if what == "agent_network":
        return _text(mapping(asked.get("network")).get("agent_from"))
    return _text(asked.get(what))


def _asked(rollout: Rollout) -> dict[str, Any]:
    """Return config.json, empty where there is none that can be read."""
    try:
        return mapping(rollout.config)
    except (RecordError, OSError):
        return {}


def _table(job_dir: Path, found: list[Difference]) -> str:
    rows = [("what", "was", "is", "what to do"), *(each.as_row() for each in found[:_LISTED])]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
    said = f"{job_dir} cannot be resumed so, for its rollouts would not be of one experiment any more:"
    return "\n".join([said, *(f"  {line}" for line in (*lines, *more))])


def _words(values: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, values))) or "none"


def _effort(value: Any) -> str:
    return "not asked" if value is None else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value[key]}" for key in sorted(value)) or "none"
    return "none" if value is None else str(value)


def _cut(text: str) -> str:
    shown = plain(text)
    return shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 1]}…"
