"""Let hand-written tests use a sandbox and a model gateway directly: plain calls over the background loop."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import SandboxSpec
from pytest_benchflow.errors import UnsupportedError
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir
from pytest_benchflow.rollout.cell import resolve_agent, resolve_backend
from pytest_benchflow.rollout.ledger import facts_of, make
from pytest_benchflow.rollout.skills import skill_mode
from pytest_benchflow.settings import host_variable
from pytest_benchflow.tasks.env import expand_env

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import Backend, Endpoint, ExecResult, Sandbox
    from pytest_benchflow.records.rollout import Rollout
    from pytest_benchflow.rollout.config import RolloutConfig
    from pytest_benchflow.rollout.session import RolloutSession
    from pytest_benchflow.tasks.task import Task


class SandboxHandle:
    """A machine with a task's environment, of the test's own: made on first use, removed when the test ends.

    `backend` is what a rollout of the same test takes its own sandbox from.
    """

    def __init__(self, backend: str | Backend, task: Task, session: Callable[[], RolloutSession]) -> None:
        self.backend = backend
        self.task = task
        self._session = session
        self._sandbox: Sandbox | None = None
        self._scratch: Path | None = None
        self._facts: dict[str, Any] = {}

    @property
    def workdir(self) -> str:
        """Return the task's working directory inside."""
        return self._started().workdir

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Run a command to its end, in the working directory unless `cwd` says otherwise; `timeout` is in seconds.

        Raises: UnsupportedError when this machine cannot make the sandbox, SandboxError when it fails.
        """
        sandbox = self._started()
        work = sandbox.exec(argv, stdin=stdin, env=env, cwd=cwd or sandbox.workdir, user=user, timeout=timeout)
        return self._session().pool.run(work)

    def upload(self, source: Path, target: str) -> None:
        """Copy a host file or directory to the absolute path `target` inside."""
        self._session().pool.run(self._started().upload(source, target))

    def download(self, source: str, target: Path) -> None:
        """Copy a file or directory out. Raises: FileNotFoundError."""
        self._session().pool.run(self._started().download(source, target))

    def reach(self, llm_proxy: LlmProxy) -> str:
        """Make the gateway reachable from inside and return its URL there."""
        return self._session().pool.run(self._started().reach(llm_proxy.endpoint()))

    def close(self) -> None:
        """Stop the machine and remove its files; safe to call twice and when it was never used."""
        sandbox, self._sandbox = self._sandbox, None
        scratch, self._scratch = self._scratch, None
        try:
            if sandbox is not None:
                self._session().pool.run(sandbox.stop())
                self._session().host().ledger.add(None, "deleted", **self._facts)
        finally:
            if scratch is not None:
                self._session().host().scratch.discard(scratch)

    def _started(self) -> Sandbox:
        if self._sandbox is None:
            backend = resolve_backend(self.backend)
            networks = backend.capabilities.networks
            closed = None if "proxy" in networks else f"the {backend.name} sandbox cannot be held to the model's proxy"
            for reason in (backend.available(), backend.unsupported(self.task), closed):
                if reason:
                    raise UnsupportedError(reason)
            session = self._session()
            name = f"bf-{os.getpid()}-{secrets.token_hex(4)}"
            self._scratch = session.host().scratch.new(name)
            env = expand_env(self.task.environment.env, host_variable)
            spec = SandboxSpec(id=name, task=self.task, scratch=self._scratch, env=env)
            self._facts = facts_of(backend, spec)
            session.host().use(backend)
            self._sandbox = session.pool.run(make(session.host().ledger, None, backend, spec, self._facts))
            session.pool.run(self._sandbox.enter("agent", "proxy"))
        return self._sandbox


class LlmProxy:
    """The door to a model: `model` is what a rollout of the same cell uses.

    After that rollout `exchanges` are its recorded ones. Used by hand, it opens on the first look at `url` or `token`
    and records into `directory`.
    """

    def __init__(
        self,
        config: RolloutConfig,
        task: Task,
        directory: Callable[[], Path],
        session: Callable[[], RolloutSession],
    ) -> None:
        self.model = config.model
        self._config = config
        self._task = task
        self._directory = directory
        self._session = session
        self._endpoint: Endpoint | None = None
        self._rundir: RunDir | None = None

    @property
    def exchanges(self) -> list[dict[str, Any]]:
        """Return the exchanges recorded so far, as llm_trajectory.jsonl holds them."""
        if self._rundir is None or not self._rundir.llm.exists():
            return []
        return list(read_records(self._rundir.llm))

    @property
    def url(self) -> str:
        """Return the URL on this host, without a path. From inside a sandbox it is `sandbox.reach(llm_proxy)`."""
        return f"http://127.0.0.1:{self._session().pool.run(self.endpoint().port())}"

    @property
    def token(self) -> str:
        """Return what a client shows as its API key."""
        return self.endpoint().token

    def endpoint(self) -> Endpoint:
        """Return the open endpoint. Raises: UnsupportedError, UsageError or ProviderError when there is no route."""
        if self._endpoint is None:
            # Imported here: most tests never open a gateway by hand.
            from pytest_benchflow.proxy.routes import route

            way = route(
                self.model,
                task=self._task,
                agent_name=resolve_agent(self._config.agent).name,
                replay_strict=self._config.replay_strict,
                skill_mode=skill_mode(self._config.skills, self._task),
                timeout=self._config.model_timeout,
            )
            self._rundir = RunDir(self._directory()).create()
            session = self._session()
            host = session.host()
            opened = way.open_endpoint(
                host.gateway(), rundir=self._rundir, redactor=Redactor(), translation=host.translation
            )
            self._endpoint = session.pool.run(opened)
        return self._endpoint

    def follow(self, rollout: Rollout) -> None:
        """Show the exchanges of a finished rollout from now on."""
        self._rundir = rollout.dir

    def close(self) -> None:
        """Close the endpoint, when it was opened by hand; safe to call twice."""
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            self._session().pool.run(endpoint.close())
