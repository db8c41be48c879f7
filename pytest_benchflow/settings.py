"""Turn options, ini values and the environment into one frozen `Settings`; it never holds a secret.

Every option is one line in `OPTIONS`: the command line, the ini file and `--help` are made from it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SKILL_MODES = ("default", "with", "without", "both")
GATES = ("health", "reward")
AGENT_NETWORKS = ("declared", "proxy", "environment")
# What a resumed job fills: the first is meant by the option alone.
RESUMES = ("unhealthy", "unscored", "missing")
# In which order items of rollouts report.
ORDERS = ("collection", "finished")
PARITIES = ("bytes", "behaviour")
# How rollouts under way are shown.
PROGRESSES = ("off", "plain", "live")
# What agents call the reasoning effort: where it is set, it means the option.
EFFORT_VARIABLE = "LLM_REASONING_EFFORT"
# What the wire formats know, the least first; and words that leave it to the provider.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
OPEN_EFFORTS = ("default", "auto")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `--benchflow-NAME` and the ini value `benchflow_NAME`; kind is str, int, float, bool or list."""

    name: str
    kind: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    alone: str | None = None  # what the option means without a value; one that is given follows an equals sign

    @property
    def flag(self) -> str:
        """Return the command-line spelling."""
        return f"--benchflow-{self.name}"

    @property
    def ini(self) -> str:
        """Return the ini spelling, which is also the option's dest."""
        return "benchflow_" + self.name.replace("-", "_")


OPTIONS: tuple[Option, ...] = (
    Option("agent", "list", (), "agent to run on each task; repeat for more (default: baseline)", metavar="NAME"),
    Option(
        "model",
        "list",
        (),
        "model as provider/name, or replay for recorded answers; repeat for more (default: replay)",
        metavar="NAME",
    ),
    Option(
        "matrix",
        "str",
        None,
        "TOML file with agents, models, skills, trials, tasks and what to leave out or add; options count over it",
        metavar="FILE",
    ),
    Option("sandbox", "str", "local", "sandbox backend that each rollout runs in (default: local)", metavar="NAME"),
    Option(
        "ssh-host",
        "list",
        (),
        "machine for rollouts of the ssh sandbox, and how many it takes at a time (default: one for each of its "
        "processors); repeat for more",
        metavar="[USER@]HOST[:PORT][*N]",
    ),
    Option("jobs-dir", "str", "jobs", "directory that receives one directory per run (default: jobs)", metavar="DIR"),
    Option("job-name", "str", "", "name of this run's directory (default: the time it starts)", metavar="NAME"),
    Option(
        "resume",
        "str",
        None,
        "fill the gaps of the job that --benchflow-job-name names: what is not there, not scored or not healthy "
        "(unhealthy, the default), what is not there or not scored (unscored), or only what is not there (missing)",
        RESUMES,
        alone="unhealthy",
    ),
    Option(
        "accept-change",
        "list",
        (),
        "what may differ from the rollouts of a resumed job: agent_version, agent_env, agent_network or tasks; repeat "
        "for more",
        metavar="NAME",
    ),
    Option(
        "retries",
        "int",
        0,
        "further attempts at a rollout whose sandbox, transport or provider failed, or, once, whose verifier crashed "
        "(default: 0)",
        metavar="N",
    ),
    Option("concurrency", "int", 1, "rollouts that each process keeps in flight at a time (default: 1)", metavar="N"),
    Option(
        "order",
        "str",
        "collection",
        "how items report when several rollouts are in flight: as collected (default), or those of whichever rollout "
        "is finished first",
        ORDERS,
    ),
    Option(
        "progress",
        "str",
        None,
        "how rollouts under way are shown: in lines below pytest's own (live), by a line as each begins and ends "
        "(plain), or not at all (default: live on a terminal and plain elsewhere where several can be under way at a "
        "time, else off)",
        PROGRESSES,
    ),
    Option("trials", "int", 1, "rollouts per task, agent, model and skill mode (default: 1)", metavar="N"),
    Option("agent-timeout", "float", None, "seconds an agent may take, over what the task says", metavar="SEC"),
    Option(
        "idle-timeout",
        "float",
        None,
        "seconds an agent may be silent with no model call open (default: off)",
        metavar="SEC",
    ),
    Option(
        "model-timeout",
        "float",
        None,
        "seconds a model may take for one answer (default: what is left of the agent's)",
        metavar="SEC",
    ),
    Option(
        "skip-key-check", "bool", False, "do not try each model's key with an empty request before the first rollout"
    ),
    Option("skills", "str", "default", "whether agents get the skills a task ships", SKILL_MODES),
    Option("gate", "str", "health", "what makes a rollout item pass: a healthy rollout, or a full reward too", GATES),
    Option(
        "agent-network",
        "str",
        "declared",
        "what agents may reach beside their model: what a task's [agent] declares (default), nothing (proxy), or what "
        "its [environment] says too",
        AGENT_NETWORKS,
    ),
    Option("keep-sandbox", "bool", False, "leave each sandbox's files in place for inspection and print where"),
    Option(
        "agent-env",
        "list",
        (),
        "variable for the agent: KEY=VALUE, or KEY to pass the host's value",
        metavar="KEY[=VALUE]",
    ),
    Option(
        "reasoning-effort",
        "str",
        None,
        f"reasoning effort that agents ask their model for: {', '.join((*EFFORTS, *OPEN_EFFORTS))}, or what an agent's "
        "manifest names",
        metavar="LEVEL",
    ),
    Option(
        "price",
        "list",
        (),
        "what a model costs, in US dollars per million tokens: MODEL=in,out[,cache_read,cache_write]; repeat for more",
        metavar="MODEL=IN,OUT",
    ),
    Option(
        "prices", "str", None, "TOML file with what models cost, where --benchflow-price says nothing", metavar="FILE"
    ),
    Option(
        "model-concurrency",
        "int",
        None,
        "calls of a model open at once per API key, over all workers (default: any number)",
        metavar="N",
    ),
    Option("max-cost", "float", None, "US dollars after which no further rollout starts (default: off)", metavar="USD"),
    Option(
        "canary",
        "list",
        (),
        "tasks that each agent, model and skill mode does first, by name; the rest starts only when they are healthy",
        metavar="TASK[,TASK]",
    ),
    Option(
        "require-audit",
        "bool",
        False,
        "start the rest only when an audit that holds calls each canary publishable (needs --benchflow-canary)",
    ),
    Option(
        "min-pass-rate",
        "float",
        None,
        "share of the planned rollouts that must be solved, or the run fails: above 0, up to 1",
        metavar="R",
    ),
    Option(
        "max-unhealthy",
        "str",
        None,
        "how many planned rollouts, or what share of them, may be unhealthy or missing; within it these fail no run",
        metavar="N|P%",
    ),
    Option("replay-strict", "bool", False, "refuse a replayed request whose tool outputs differ from the recording"),
    Option(
        "review",
        "list",
        (),
        "rollouts to check as they lie on disk: a rollout, a job or a directory of jobs; repeat for more",
        metavar="PATH",
    ),
    Option("review-rebuild", "bool", False, "review the row that the raw records give, not the one on disk"),
    Option("expect-commit", "str", None, "commit that each reviewed rollout must have been made from", metavar="SHA"),
    Option(
        "conformance",
        "list",
        (),
        "agent to check: what it does with a scripted model, a client that refuses and cancels, and when it dies; a "
        "name or a manifest file; repeat for more",
        metavar="NAME",
    ),
    Option(
        "manifests",
        "str",
        None,
        "directory of others' agent manifests to compare with our catalogue, an item for each agent",
        metavar="DIR",
    ),
    Option("parity", "str", "bytes", "what must be the same in manifests that are compared", PARITIES),
    Option("record", "bool", False, "write each healthy rollout's exchanges into its task's recorded/ directory"),
)

# How pytest reads the ini value of an option of each kind.
INI_TYPES: dict[str, Any] = {"str": "string", "int": "int", "float": "float", "bool": "bool", "list": "args"}

# Ini values without a command-line spelling: name, type, default, help.
INI_ONLY: tuple[tuple[str, Any, Any, str], ...] = (
    ("benchflow_tasks", "args", ["tasks"], "directories searched for tasks when an agent is named and no path is"),
)

_MOST = re.compile(r"\d{1,9}|(\d{1,2}(\.\d{1,6})?|100)%", re.ASCII)
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_ENV_ITEM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Exclude:
    """Cells that a matrix leaves out: those that fit every pattern given; no pattern fits all."""

    task: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    trial: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Include:
    """Cells that a matrix has beside its product, with settings of their own; None and () are those of the product."""

    agent: tuple[str, ...]
    model: tuple[str, ...] = ()
    task: tuple[str, ...] = ()  # patterns
    skills: str | None = None
    trials: int | None = None
    reasoning_effort: str | None = None
    agent_timeout: float | None = None
    idle_timeout: float | None = None
    model_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run was asked to do; the attributes are the options of the same name."""

    agents: tuple[str, ...] = ("baseline",)
    models: tuple[str, ...] = ("replay",)
    matrix: str | None = None
    exclude: tuple[Exclude, ...] = ()
    include: tuple[Include, ...] = ()
    sandbox: str = "local"
    ssh_hosts: tuple[str, ...] = ()
    jobs_dir: Path = Path("jobs")
    job_name: str = ""
    resume: str | None = None
    accept_change: tuple[str, ...] = ()
    retries: int = 0
    concurrency: int = 1
    order: str = "collection"
    progress: str | None = None
    trials: int = 1
    agent_timeout: float | None = None
    idle_timeout: float | None = None
    model_timeout: float | None = None
    skip_key_check: bool = False
    skills: str = "default"
    gate: str = "health"
    keep_sandbox: bool = False
    agent_network: str = "declared"
    agent_env: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    price: tuple[str, ...] = ()
    prices: str | None = None
    model_concurrency: int | None = None
    max_cost: float | None = None
    canary: tuple[str, ...] = ()
    require_audit: bool = False
    min_pass_rate: float | None = None
    max_unhealthy: str | None = None
    replay_strict: bool = False
    record: bool = False
    review: tuple[str, ...] = ()
    review_rebuild: bool = False
    expect_commit: str | None = None
    conformance: tuple[str, ...] = ()
    manifests: str | None = None
    parity: str = "bytes"
    tasks: tuple[str, ...] = field(default=("tasks",))

    @property
    def all_agents(self) -> tuple[str, ...]:
        """Return the agents of the product and of what is included beside it."""
        return tuple(dict.fromkeys([*self.agents, *(name for each in self.include for name in each.agent)]))

    @property
    def all_models(self) -> tuple[str, ...]:
        """Return the models of the product and of what is included beside it."""
        return tuple(dict.fromkeys([*self.models, *(name for each in self.include for name in each.model)]))

    @property
    def most_trials(self) -> int:
        """Return the most trials that any cell of the matrix has."""
        return max([self.trials, *(each.trials or 0 for each in self.include)])

    @property
    def both_skill_modes(self) -> bool:
        """Tell whether any task may run with and without its skills."""
        return "both" in (self.skills, *(each.skills for each in self.include))


def host_variable(name: str) -> str | None:
    """Return a host environment variable, None when unset or empty. All look-ups go through here."""
    return os.environ.get(name) or None


def cache_dir() -> Path:
    """Return the directory that outlives sessions: BENCHFLOW_CACHE_DIR, else the user's cache directory."""
    named = host_variable("BENCHFLOW_CACHE_DIR")
    if named:
        return Path(named).absolute()
    return Path(host_variable("XDG_CACHE_HOME") or Path.home() / ".cache") / "pytest-benchflow"


def read_settings(
    lookup: Callable[[Option], Any], spelling: Callable[[Option], str], tasks: Sequence[str], root: Path
) -> Settings:
    """Make `Settings` from a look-up of raw option values (command line over ini). Raises: UsageError.

    `spelling` names an option as the user gave it; `root` is what a relative jobs directory is relative to.
    """
    raw = {option.name: _typed(option, lookup(option), spelling(option)) for option in OPTIONS}
    given = {option.name: spelling(option) for option in OPTIONS}
    for name in ("trials", "concurrency", "model-concurrency"):
        if raw[name] is not None and raw[name] < 1:
            raise UsageError(f"{given[name]} is {raw[name]}; it takes a whole number of at least 1")
    if raw["retries"] < 0:
        raise UsageError(f"{given['retries']} is {raw['retries']}; it takes a whole number of at least 0")
    for name in ("agent-timeout", "idle-timeout", "model-timeout"):
        if raw[name] is not None and not 0 < raw[name] < float("inf"):
            raise UsageError(f"{given[name]} is {raw[name]}; it takes a number of seconds above 0")
    if raw["max-cost"] is not None and not 0 < raw["max-cost"] < float("inf"):
        raise UsageError(f"{given['max-cost']} is {raw['max-cost']}; it takes US dollars above 0")
    _check_gates(raw, given)
    if raw["job-name"] and not _SAFE_NAME.match(raw["job-name"]):
        raise UsageError(
            f"{given['job-name']} is {raw['job-name']!r}; it takes letters, digits, dots, dashes and underscores, "
            "not starting with a dot or a dash"
        )
    for item in raw["agent-env"]:
        if not _ENV_ITEM.match(item):
            raise UsageError(f"{given['agent-env']} got {item.partition('=')[0]!r}; it takes KEY=VALUE or KEY")
    # Each option has the field of its name; these have others.
    fields = {option.ini.removeprefix("benchflow_"): raw[option.name] for option in OPTIONS}
    agents, models, hosts = fields.pop("agent"), fields.pop("model"), fields.pop("ssh_host")
    fields |= {"agents": agents or ("baseline",), "models": models or ("replay",), "ssh_hosts": hosts}
    return Settings(**{**fields, "jobs_dir": root / raw["jobs-dir"], "tasks": tuple(tasks)})


def _check_gates(raw: dict[str, Any], given: dict[str, str]) -> None:
    """Refuse limits that no job could keep or miss, and an audit of nothing. Raises: UsageError."""
    if raw["min-pass-rate"] is not None and not 0 < raw["min-pass-rate"] <= 1:
        raise UsageError(f"{given['min-pass-rate']} is {raw['min-pass-rate']}; it takes a share above 0, up to 1")
    if raw["max-unhealthy"] is not None and not _MOST.fullmatch(raw["max-unhealthy"]):
        raise UsageError(
            f"{given['max-unhealthy']} is {raw['max-unhealthy']!r}; it takes how many may be unhealthy, as 3, or what "
            "share of all, as 5%"
        )
    names = [name.strip() for item in raw["canary"] for name in item.split(",")]
    if "" in names:
        raise UsageError(f"{given['canary']} names a task ''; it takes names of tasks, with commas between them")
    raw["canary"] = tuple(dict.fromkeys(names))
    if raw["require-audit"] and not names:
        raise UsageError(f"{given['require-audit']} is of canaries, and there are none; pass --benchflow-canary=TASK")


def _typed(option: Option, value: Any, given: str) -> Any:
    """Convert a value that came as `given` to the option's kind. Raises: UsageError naming what is accepted."""
    if value is None or value in ("", []):
        return option.default
    if option.kind == "list":
        return tuple(dict.fromkeys(value)) if option.name in ("agent", "model") else tuple(value)
    if option.kind == "bool":
        return bool(value)
    if option.kind in ("int", "float"):
        try:
            return int(value) if option.kind == "int" else float(value)
        except ValueError:
            noun = "a whole number" if option.kind == "int" else "a number"
            raise UsageError(f"{given} is {value!r}; it takes {noun}") from None
    if option.choices and value not in option.choices:
        raise UsageError(f"{given} is {value!r}; it takes one of: {', '.join(option.choices)}")
    return value
