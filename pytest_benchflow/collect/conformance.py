"""Collect what an agent must be able to do: an item for each capability, under the scenario that shows it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import registry
from pytest_benchflow.catalog.directory import declare_agents
from pytest_benchflow.catalog.load import find, load_manifest
from pytest_benchflow.errors import BenchflowError, UsageError
from pytest_benchflow.report.text import one_line, printable
from pytest_benchflow.rollout.cell import resolve_backend
from pytest_benchflow.rollout.plan import agent_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_benchflow.contracts import Agent
    from pytest_benchflow.rollout.capabilities import Capability
    from pytest_benchflow.rollout.probing import Evidence
    from pytest_benchflow.rollout.session import RolloutSession
    from pytest_benchflow.settings import Settings

OPTION = "--benchflow-conformance"
# The property of an item's report that says what it found.
_PROPERTY = "benchflow_conformance"


def make_conformance(config: pytest.Config, settings: Settings, session: Callable[[], RolloutSession]) -> Conformance:
    """Return the checks of this session's agents. Raises: pytest.UsageError."""
    from pytest_benchflow.rollout.probing import patience

    given = config.option.benchflow_conformance is not None
    try:
        if given:
            agents = _agents(settings.conformance, config.invocation_params.dir, OPTION)
        else:
            agents = _agents(settings.conformance, config.rootpath, "the ini value benchflow_conformance")
        agent_environment(settings)
        resolve_backend(settings.sandbox)
        patience(settings)
    except UsageError as error:
        raise pytest.UsageError(printable(error)) from None
    if given and config.args_source is not pytest.Config.ArgsSource.ARGS:
        # The option without a path asks for these items alone.
        config.args[:] = []
    return Conformance(config, settings, agents, session)


def _agents(names: Sequence[str], here: Path, spelling: str) -> dict[str, Agent]:
    """Return the agents by name, those of manifest files made known. Raises: UsageError."""
    declare_agents()
    found: dict[str, Agent] = {}
    for given in names:
        name = given
        if given.endswith(".toml") or "/" in given:
            manifest = load_manifest(here / given)
            registry.declare({manifest.name: manifest})
            name = manifest.name
        try:
            agent: Agent = registry.load("agents", name, "agent")(registry.canonical("agents", name))
        except UsageError as error:
            raise UsageError(f"{spelling} is {given!r}; {error}") from None
        if not agent.uses_model:
            raise UsageError(f"{spelling} is {given!r}, which calls no model; it takes an agent that does")
        if agent.name in found:
            raise UsageError(f"{spelling} names the agent {agent.name} twice; check one version at a time")
        found[agent.name] = agent
    return found


class Conformance:
    """The part of a session that checks agents: hooks that add the items, and the table of what they found."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        agents: Mapping[str, Agent],
        session: Callable[[], RolloutSession],
    ) -> None:
        self.agents = agents
        self.session = session
        self._config = config
        self._settings = settings
        self._found: dict[str, dict[str, dict[str, Any]]] = {}
        self._unwritten = ""
        self._tellers: dict[tuple[str, str], Capability] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the items of each agent, before anything is selected."""
        from pytest_benchflow.rollout.scenarios import SCENARIOS

        for name, agent in self.agents.items():
            for scenario in SCENARIOS:
                node: ScenarioNode = ScenarioNode.from_parent(
                    session, name=scenario, nodeid=f"conformance/{name}/{scenario}"
                )
                node.checks, node.agent = self, agent
                node.extra_keyword_matches.add(name)
                report = session.ihook.pytest_make_collect_report(collector=node)
                session.ihook.pytest_collectreport(report=report)
                items += report.result

    def pytest_report_collectionfinish(self) -> str | None:
        """Say what is checked."""
        return None if self._config.get_verbosity() < 0 else f"conformance: {', '.join(self.agents)}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what an item found, in whichever process it ran."""
        for name, value in report.user_properties if report.when == "call" else ():
            if name == _PROPERTY:
                record = json.loads(str(value))
                self._found.setdefault(record["agent"], {})[record["capability"]] = record

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write conformance.json, in the process that hears of every item; a session that cannot fails."""
        if self._found and not hasattr(self._config, "workerinput"):
            from pytest_benchflow.records.journal import write_json
            from pytest_benchflow.report.conformance import as_json

            try:
                write_json(self._file(), as_json(self._tables()))
            except OSError as error:
                self._unwritten = error.strerror or str(error)
                if session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write what each agent supports."""
        if not self._found:
            return
        from pytest_benchflow.report.conformance import table_lines

        terminalreporter.write_sep("=", "conformance")
        width = self._config.get_terminal_writer().fullwidth
        for agent, found in self._tables().items():
            for line, colour in table_lines(agent, found, width):
                terminalreporter.write_line(line, **colour)
        place = os.path.relpath(self._file(), self._config.invocation_params.dir)
        if self._unwritten:
            terminalreporter.write_line(f"{place} cannot be written: {self._unwritten}", red=True)
        else:
            terminalreporter.write_line(place)

    def teller(self, agent: Agent, reason: str, capability: Capability) -> Capability:
        """Return the capability that tells why an agent could not be prompted: the first to ask with that reason."""
        # What follows the first line is the end of a log, which differs from run to run.
        head = reason.partition("\n")[0].partition("; log: ")[0]
        return self._tellers.setdefault((agent.name, head), capability)

    def _tables(self) -> dict[str, list[dict[str, Any]]]:
        from pytest_benchflow.rollout.capabilities import CAPABILITIES

        return {
            agent: [found[each.name] for each in CAPABILITIES if each.name in found]
            for agent in self.agents
            if (found := self._found.get(agent))
        }

    def _file(self) -> Path:
        from pytest_benchflow.report.conformance import FILE_NAME

        return self._settings.jobs_dir / self._settings.job_name / FILE_NAME


class ScenarioNode(pytest.Collector):
    """One run of one agent; the capabilities that it shows are its items."""

    checks: Conformance
    agent: Agent
    _evidence: Evidence | None = None

    def collect(self) -> list[CapabilityItem]:
        """Return an item for each capability."""
        from pytest_benchflow.rollout.capabilities import CAPABILITIES

        return [CapabilityItem.of(self, each) for each in CAPABILITIES if each.scenario == self.name]

    def evidence(self) -> Evidence:
        """Return what the run left, running it when the first item asks. Raises: BenchflowError."""
        if self._evidence is None:
            from pytest_benchflow.rollout.probing import MODEL, probe
            from pytest_benchflow.rollout.scenarios import SCENARIOS

            manifest = find(self.agent.name)
            known = manifest.default_model.rpartition("/")[2] if manifest else ""
            session = self.checks.session()
            self._evidence = probe(session, self.agent, SCENARIOS[self.name], model=known or MODEL)
        return self._evidence

    def teardown(self) -> None:
        """Let go of what the run left."""
        self._evidence = None


class CapabilityItem(pytest.Item):
    """A capability: passes when it is supported, is skipped when it does not apply, and xfails when it need not be."""

    parent: ScenarioNode
    capability: Capability

    @classmethod
    def of(cls, parent: ScenarioNode, capability: Capability) -> CapabilityItem:
        """Make the item of a capability."""
        item: CapabilityItem = cls.from_parent(parent, name=capability.name)
        item.capability = capability
        item.add_marker("benchflow")
        return item

    def runtest(self) -> None:
        """Judge the run."""
        from pytest_benchflow.rollout.capabilities import judge, never_prompted

        place = None
        try:
            evidence = self.parent.evidence()
            (status, detail), reason, place = judge(self.capability, evidence), never_prompted(evidence), evidence.path
        except BenchflowError as error:
            status, detail = "not supported", f"it could not be run: {error}"
            reason = detail
        if reason is not None:
            teller = self.parent.checks.teller(self.parent.agent, reason, self.capability)
            detail = detail if teller is self.capability else f"for the same reason as {teller.name}"
        self._report(status, detail, place)
        if status == "not applicable":
            pytest.skip(f"does not apply: {detail}")
        if status == "not supported":
            self._fail(detail, place)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the agent and the capability as the title of a failure."""
        return self.path, None, self.nodeid

    def _fail(self, detail: str, place: Path | None) -> None:
        said = printable(f"{self.capability.name}: {detail}" + (f"\nin {place}" if place else ""))
        if not self.capability.required:
            pytest.xfail(one_line(detail))
        pytest.fail(said, pytrace=False)

    def _report(self, status: str, detail: str, place: Path | None) -> None:
        agent, capability = self.parent.agent, self.capability
        record = {
            "agent": agent.name,
            "agent_version": agent.version,
            "capability": capability.name,
            "claim": capability.claim,
            "required": capability.required,
            "status": status,
            "detail": detail,
            "rollout": place.name if place else None,
        }
        self.user_properties.append((_PROPERTY, json.dumps(record)))
