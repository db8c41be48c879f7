"""Tell whether two launch commands do the same: both run in a sandbox with stubs, over a table of environments.

Compared are files written, calls of programs with their variables, standard output and exit codes. Doubt is not
sameness: a command that stubs cannot exercise is undecided.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.catalog.compare import HERE, THERE
from pytest_benchflow.contracts import AgentContext, SandboxSpec
from pytest_benchflow.errors import SandboxError, UnsupportedError
from pytest_benchflow.records.journal import Journal
from pytest_benchflow.rollout.drift import Drift, drifts
from pytest_benchflow.tasks.task import bare_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_benchflow.catalog.load import Manifest
    from pytest_benchflow.contracts import Backend, Sandbox
    from pytest_benchflow.tasks.task import Task

_PROGRAM = "/opt/benchflow/parity/launch.py"
_STUB = "/opt/benchflow/parity/stub.sh"
_RUN_SEC = 20.0
_ALL_SEC = 900.0
_AGENT_SEC = 3600.0
_MODEL, _KEY, _URL = "coder-1", "bf-token", "http://127.0.0.1:8000"
_ODD_URL = "https://me:p%40ss@h.example:8443/a b/~c;d?x=1&y='2'#\"f\"\\$HOME"
_QUOTES = "k\"e'y\\n $(touch /tmp/made) `id` %s $HOME {x} é"
# Where installations put programs: what a command reads there, stubs do not have.
_INSTALLED = re.compile(r"/opt/[^\s\"'`;|&()<>${},]+")


@dataclass(frozen=True, slots=True)
class Row:
    """One environment of the table: what a rollout gives an agent, and how its programs end."""

    name: str
    model: str = _MODEL
    token: str | None = _KEY
    base_url: str | None = _URL
    effort: str | None = None
    skills_dir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    exit: int = 0  # of every stub
    bare: bool = False  # nothing is installed


ROWS = (
    Row("the usual"),
    Row("no key", token=None),
    Row("no model", model=""),
    Row("no base URL", base_url=None),
    *(
        Row(f"LLM_TIMEOUT={value}", env={"LLM_TIMEOUT": value})
        for value in ("115200", "0.5", "1e3", "0", "-1", "soon", "inf", "nan", "")
    ),
    *(
        Row(f"effort {effort}", effort=effort)
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max", "unheard-of")
    ),
    Row("LLM_REASONING_EFFORT=max", env={"LLM_REASONING_EFFORT": "max"}),
    Row("base URL with odd characters", base_url=_ODD_URL),
    Row("base URL that ends in a slash", base_url=f"{_URL}/"),
    Row("quotes in the key", token=_QUOTES),
    Row("a key of two lines", token="one\ntwo\n"),  # noqa: S106 - nobody's
    Row("quotes in the model's name", model=_QUOTES),
    Row("model openai/coder-1", model="openai/coder-1"),
    Row("model azure/coder-1", model="azure/coder-1", env={"LLM_API_VERSION": "2026-01-01"}),
    Row("model vendor/family/coder:1@2", model="vendor/family/coder:1@2"),
    Row("LLM_MODEL=vendor/coder-2", env={"LLM_MODEL": "vendor/coder-2"}),
    Row("skills", skills_dir="/opt/benchflow/skills"),
    Row("HOME with a space", env={"HOME": "/srv/home of one"}),
    Row("programs that fail", exit=3),
    Row("nothing installed", bare=True),
)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What two launch commands came to; `stderr` holds the last words of both sides in the first row that differs."""

    rows: int
    drifts: Sequence[Drift] = ()
    undecided: Sequence[str] = ()
    stderr: Sequence[str] = ()

    @property
    def same(self) -> bool:
        """Tell whether both did the same in every row, with no doubt left."""
        return not self.drifts and not self.undecided


@dataclass(frozen=True, slots=True)
class Launches:
    """What launch commands did: outcomes by side and by the name of a row; `made` are the paths of stubs."""

    rows: Sequence[Row]
    outcomes: Mapping[str, Mapping[str, Any]]
    made: Sequence[str]


async def compare_behaviour(
    here: Manifest, there: Manifest, backend: Backend, scratch: Path, rows: Sequence[Row] = ROWS
) -> Behaviour:
    """Run both launch commands in a sandbox of their own; `scratch` is an empty directory.

    Raises: SandboxError, also where this machine cannot make the sandbox.
    """
    launches = await launch({HERE: here, THERE: there}, backend, scratch, rows)
    return judge({HERE: here.launch_cmd, THERE: there.launch_cmd}, launches)


async def launch(
    sides: Mapping[str, Manifest], backend: Backend, scratch: Path, rows: Sequence[Row] = ROWS
) -> Launches:
    """Run the launch commands of some sides in one sandbox, each with the same stubs. Raises: SandboxError."""
    task = bare_task(scratch / "task.toml", "parity")
    for reason in (backend.available(), backend.unsupported(task)):
        if reason:
            raise SandboxError(reason)
    room = scratch / "sandbox"
    room.mkdir()
    try:
        sandbox = await backend.create(SandboxSpec(id=f"parity-{secrets.token_hex(4)}", task=task, scratch=room))
    except UnsupportedError as error:
        raise SandboxError(str(error)) from None
    try:
        await sandbox.enter("agent", "none")
        return await _run(sandbox, task, sides, rows, scratch)
    finally:
        await sandbox.stop()


def judge(scripts: Mapping[str, str], launches: Launches) -> Behaviour:
    """Compare what both sides did."""
    here, there = (launches.outcomes[side] for side in (HERE, THERE))
    found: list[Drift] = []
    doubts: dict[str, None] = {}
    said: tuple[str, ...] = ()
    for row in launches.rows:
        pair = ((HERE, here[row.name]), (THERE, there[row.name]))
        asked = row.effort or row.env.get("LLM_REASONING_EFFORT")
        differing = drifts(row.name, here[row.name], there[row.name], effort=asked)
        if differing and not said:
            said = tuple(f"{side}: {outcome['stderr'].strip()}" for side, outcome in pair)
        found += differing
        doubts |= {f"{side}, {row.name}: {why}": None for side, outcome in pair for why in outcome["undecided"]}
    for side, script in scripts.items():
        doubts |= {f"{side}: {why}": None for why in _out_of_reach(script, launches.outcomes[side], launches.made)}
    return Behaviour(len(launches.rows), found, tuple(doubts), said)


def _out_of_reach(script: str, rows: Mapping[str, Any], made: Sequence[str]) -> list[str]:
    """Say what of a script no run has shown."""
    usual = rows.get(ROWS[0].name)
    if usual is not None and usual["exit"]:
        return [f"with all it asks for it ends with exit code {usual['exit']}: {usual['stderr'].strip()[-200:]}"]
    if not any(outcome["calls"] for outcome in rows.values()):
        return ["no program was started in any environment, and so no agent"]
    shown = [(outcome["calls"], outcome["files"]) for outcome in rows.values()]
    seen = json.dumps([shown, made], ensure_ascii=False)
    named = dict.fromkeys(path.rstrip("/.:") for path in _INSTALLED.findall(script))
    return [f"it depends on {path}, which only an installation has" for path in named if path not in seen]


async def _run(
    sandbox: Sandbox, task: Task, sides: Mapping[str, Manifest], table: Sequence[Row], scratch: Path
) -> Launches:
    here = Path(__file__)
    await sandbox.upload(here.with_name("_launch_program.py"), _PROGRAM)
    await sandbox.upload(here.with_name("_stub.sh"), _STUB)
    required = {name for manifest in sides.values() for name in manifest.requires_env}
    events = Journal(scratch / "events.jsonl")
    rows = []
    for row in table:
        context = AgentContext(
            task=task,
            instruction="",
            sandbox=sandbox,
            events=events,
            log_dir=scratch,
            timeout_sec=_AGENT_SEC,
            idle_timeout_sec=None,
            llm_timeout_sec=_AGENT_SEC,
            model=row.model,
            base_url=row.base_url,
            token=row.token,
            env=(dict.fromkeys(required, row.token) if row.token else {}) | dict(row.env),
            reasoning_effort=row.effort,
            skills_dir=row.skills_dir,
        )
        env = {side: CatalogAgent(manifest).environment(context) for side, manifest in sides.items()}
        rows.append({"name": row.name, "env": env, "exit": row.exit, "bare": row.bare})
    # As a rollout does: the workspace is known to the script.
    scripts = {side: f"WORKSPACE={sandbox.workdir}\n{manifest.launch_cmd}" for side, manifest in sides.items()}
    job = {"scripts": scripts, "rows": rows, "workdir": sandbox.workdir, "limit": _RUN_SEC}
    done = await sandbox.exec(["python3", "-I", _PROGRAM], stdin=json.dumps(job).encode(), cwd="/", timeout=_ALL_SEC)
    try:
        return Launches(table, **json.loads(done.stdout))
    except ValueError:
        how = "took too long" if done.timed_out else f"ended with exit code {done.exit_code}"
        raise SandboxError(f"the launch commands could not be run: the driver {how}: {done.stderr[-600:]}") from None
