"""Collect parity: an item for each agent that our catalogue or a directory of others' manifests declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.catalog.compare import LAUNCHED, compare
from pytest_benchflow.catalog.directory import Directory, read_directory
from pytest_benchflow.catalog.load import shipped
from pytest_benchflow.errors import BenchflowError, UsageError
from pytest_benchflow.registry import shipped as shipped_names
from pytest_benchflow.report.parity import missing_lines, parity_lines
from pytest_benchflow.report.text import counted, one_line, printable
from pytest_benchflow.rollout.cell import resolve_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pytest_benchflow.catalog.compare import Difference
    from pytest_benchflow.catalog.load import Manifest
    from pytest_benchflow.rollout.behaviour import Behaviour
    from pytest_benchflow.rollout.session import RolloutSession
    from pytest_benchflow.settings import Settings

OPTION = "--benchflow-manifests"
_SHOWN = 5
# The property of an item's report by which the process that leads knows it.
_PROPERTY = "benchflow_parity"
_LEFT_OUT = "benchflow_parity_left_out"


def make_parity(config: pytest.Config, settings: Settings, session: Callable[[], RolloutSession]) -> Parity:
    """Return the comparison that this session was asked for. Raises: pytest.UsageError."""
    given = config.option.benchflow_manifests is not None
    named = config.option.benchflow_manifests if given else settings.manifests
    root = config.invocation_params.dir if given else config.rootpath
    spelling = OPTION if given else "the ini value benchflow_manifests"
    if not named:
        raise pytest.UsageError(f"{spelling} is ''; it takes a directory of manifests")
    try:
        directory = read_directory(root / named)
    except UsageError as error:
        raise pytest.UsageError(printable(f"{spelling}: {error}")) from None
    try:
        resolve_backend(settings.sandbox)
    except UsageError as error:
        raise pytest.UsageError(printable(error)) from None
    if given and config.args_source is not pytest.Config.ArgsSource.ARGS:
        # The option without a path asks for these items alone.
        config.args[:] = []
    return Parity(config, directory, settings, session)


def catalogue() -> dict[str, Manifest]:
    """Return the manifests that this package ships, by name. Raises: UsageError."""
    found = (shipped(name) for name in shipped_names("agents"))
    return {manifest.name: manifest for manifest in found if manifest is not None}


class Parity:
    """The part of a session that compares manifests: hooks that add the items, and a gate over all of them."""

    def __init__(
        self, config: pytest.Config, there: Directory, settings: Settings, session: Callable[[], RolloutSession]
    ) -> None:
        self.here = catalogue()
        self.there = there
        self.mode = settings.parity
        self._config = config
        self._sandbox = settings.sandbox
        self._session = session
        self._heard: set[str] = set()
        self._left_out: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Return the agents of either side."""
        return sorted({*self.here, *self.there.manifests})

    def pytest_report_header(self) -> list[str]:
        """Say what is compared: path, commit and state of the other side."""
        common = len(self.here.keys() & self.there.manifests.keys())
        return [
            f"parity: {printable(self.there)}",
            f"parity: {counted(len(self.there.manifests), 'agent')} there, {len(self.here)} here, {common} in both; "
            f"compared by {self.mode}",
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add an item for each agent, before anything is selected."""
        node: ParityNode = ParityNode.from_parent(session, name="parity", nodeid="parity")
        node.parity = self
        items += session.genitems(node)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which agents were compared, in whichever process."""
        if report.when == "call" and not report.skipped:
            self._heard |= {str(value) for name, value in report.user_properties if name == _PROPERTY}

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        """Note which agents were left out, of a selection that the user made."""
        options = self._config.option
        again = any(self._config.getoption(name, default=False) for name in ("lf", "stepwise"))
        if options.keyword or options.markexpr or options.deselect or again:
            self._left_out |= {item.agent for item in items if isinstance(item, ParityItem)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Hear from an xdist worker what it left out."""
        self._left_out |= set(getattr(node, "workeroutput", {}).get(_LEFT_OUT, ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session in which agents were not compared: parity that was asked for is never passed over."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_LEFT_OUT] = sorted(self._left_out)
            return
        if self._config.option.collectonly or not (lost := self._missed()):
            return
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        said = f"parity was asked for, and not compared were: {', '.join(lost[:_SHOWN])}{more}"
        # A report, so that a junit file tells of it too: it may be all that is read of this session.
        place = ("parity", None, "parity::compared")
        self._config.hook.pytest_runtest_logreport(
            report=pytest.TestReport("parity::compared", place, {}, outcome="failed", longrepr=said, when="call")
        )
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def behaviour(self, here: Manifest, there: Manifest) -> Behaviour | str:
        """Run both launch commands; a text says why that cannot be done."""
        from pytest_benchflow.rollout.behaviour import compare_behaviour

        session = self._session()
        scratch = None
        try:
            scratch = session.host().scratch.new(f"parity-{here.name}")
            return session.pool.run(compare_behaviour(here, there, resolve_backend(self._sandbox), scratch))
        except BenchflowError as error:
            return one_line(error)
        finally:
            if scratch is not None:
                session.host().scratch.discard(scratch)

    def _missed(self) -> list[str]:
        """Return the agents of which nothing was heard and that no selection left out; all, if that holds nobody."""
        left_out = self._left_out if self._heard else ()
        return [name for name in self.names if name not in self._heard and name not in left_out]


class ParityNode(pytest.Collector):
    """All agents of both sides."""

    parity: Parity

    def collect(self) -> list[pytest.Item]:
        """Return an item for each agent; its name says on which sides it is."""
        return list(self._items())

    def _items(self) -> Iterable[pytest.Item]:
        for name in self.parity.names:
            here, there = self.parity.here.get(name), self.parity.there.manifests.get(name)
            where = "only_there" if here is None else "only_here" if there is None else "same"
            item: ParityItem = ParityItem.from_parent(self, name=f"{where}[{name}]")
            item.agent, item.here, item.there = name, here, there
            item.add_marker("benchflow")
            item.user_properties.append((_PROPERTY, name))
            yield item


class ParityItem(pytest.Item):
    """An agent: passes when both sides declare it, and declare the same."""

    parent: ParityNode
    agent: str
    here: Manifest | None
    there: Manifest | None

    def runtest(self) -> None:
        """Compare both manifests, and where commands differ in text what they do."""
        parity = self.parent.parity
        if self.here is None or self.there is None:
            self._fail(missing_lines(self.agent, self.here or self.there, parity.there))
            return
        try:
            differences = compare(self.here, self.there)
        except BenchflowError as error:
            self._fail([str(error)])
            return
        if not differences:
            return
        launched = any(each.field in LAUNCHED for each in differences)
        behaviour = parity.behaviour(self.here, self.there) if launched else None
        lines = parity_lines(self.here, self.there, differences, behaviour)
        if parity.mode == "behaviour" and not _has_effect(differences, behaviour):
            self.add_report_section("call", "parity", printable("\n".join(lines)))
        else:
            self._fail(lines)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the agent as the title of a failure."""
        return self.path, 0, self.nodeid

    def _fail(self, lines: list[str]) -> None:
        pytest.fail(printable("\n".join(lines)), pytrace=False)


def _has_effect(differences: Iterable[Difference], behaviour: Behaviour | str | None) -> bool:
    """Tell whether a difference has an effect, or may have one."""
    if any(each.effect and each.field not in LAUNCHED for each in differences):
        return True
    return behaviour is not None and (isinstance(behaviour, str) or not behaviour.same)
