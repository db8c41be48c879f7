"""Know which rollouts items will surely ask for, so that they begin before their items come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.rollout.cell import task_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pytest

    from pytest_benchflow.fixtures import Runs

# Packages of others change no rollout; what a user has written may.
_INSTALLED = ("site-packages", "dist-packages")
_HOOKS = ("pytest_runtest_protocol", "pytest_runtest_setup", "pytest_fixture_setup")


class Ahead:
    """Lets the rollouts begin that `items` returns the items of, as soon as it is sure that those ask for them.

    That is so where nothing of the user's own comes between an item and its rollout: no fixture of its ladder is
    another's, its marks skip nothing, and fixtures of a wider scope that it takes have been set up. Of the items that
    share a cell the first one decides. `items` may return what it has returned before.
    """

    def __init__(self, session: pytest.Session, runs: Runs, items: Callable[[], Iterable[pytest.Item]]) -> None:
        self._session = session
        self._runs = runs
        self._items = items
        self._hook = _own_hook(session.config)
        self._seen: set[int] = set()  # items, and the cells that they share
        self._later: list[pytest.Item] = []
        self.kept_back: dict[str, str] = {}  # the names of rollouts that begin with their item, and why

    def __call__(self) -> None:
        """Let what can begin now begin; called again when there may be more."""
        items, self._later = [*self._later, *filter(self._is_new, self._items())], []
        cells = []
        for item in items:
            cell = self._runs.planned_cell(item)
            if cell is None:
                continue
            why, waits = (self._hook, False) if self._hook else self._why_not(item)
            if waits:
                self._later.append(item)
            elif why is None:
                cells.append(cell)
            else:
                self.kept_back.setdefault(cell.rollout_name(task_of(cell)), why)
        if cells:
            self._runs.session().look_ahead(cells)

    def _why_not(self, item: pytest.Item) -> tuple[str | None, bool]:
        """Return why an item's rollout must begin with it, None when it need not; and whether that may change."""
        known = getattr(item, "_fixtureinfo", None)
        if known is None:
            return "it is no test function", False
        if any(item.get_closest_marker(mark) for mark in ("skip", "skipif")):
            return "its marks may skip it", False
        if any(mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")):
            return "its marks may keep it from running", False
        if not self._runs.is_plain(item):
            return "a fixture of its ladder is overridden", False
        waits = False
        for name, definitions in known.name2fixturedefs.items():
            definition = definitions[-1]
            if not _is_own(definition.func):
                continue
            if definition.scope == "function" or definition.params:
                return f"the fixture {name} comes before it", False
            done = definition.cached_result
            waits = waits or done is None or done[2] is not None
        return None, waits

    def _is_new(self, item: pytest.Item) -> bool:
        marks = {id(item), id(getattr(item, "cell", item))}
        new = self._seen.isdisjoint(marks)
        self._seen |= marks
        return new

    def pytest_runtest_logreport(self) -> None:
        """Stop as soon as it is known that the session stops, as by -x."""
        if self._session.shouldfail or self._session.shouldstop:
            self._runs.stop_early()


def look_ahead(session: pytest.Session, runs: Runs, *, worker: bool) -> bool | None:
    """Let rollouts begin before their items come; True: the items have been run in the order of the rollouts' ends.

    On a worker of xdist, whose items come one after the other, they are run as they come.
    """
    runs.ahead = ahead = Ahead(session, runs, _handed(session) if worker else _once(session.items))
    session.config.pluginmanager.register(ahead, "benchflow-ahead")
    if worker:
        runs.meanwhile = ahead
    if worker or runs.settings.order != "finished" or session.testsfailed:
        return None
    from pytest_benchflow.collect.order import run_as_finished

    return run_as_finished(session, runs)


def _once(items: Sequence[pytest.Item]) -> Callable[[], Iterable[pytest.Item]]:
    left = iter(items)
    return lambda: left


def _handed(session: pytest.Session) -> Callable[[], Iterable[pytest.Item]]:
    """Return what gives the items that xdist has handed to this worker and that have not begun."""
    worker: Any = next(plugin for plugin in session.config.pluginmanager.get_plugins() if hasattr(plugin, "torun"))

    def handed() -> list[pytest.Item]:
        with worker.torun.lock() as queue:
            numbers = [worker.nextitem_index, *queue]
        return [session.items[number] for number in numbers if isinstance(number, int)]

    return handed


def _own_hook(config: pytest.Config) -> str | None:
    """Return why no item is looked ahead for: a hook of the user's own may skip any of them, or change what it does."""
    for name in _HOOKS:
        for implementation in getattr(config.hook, name).get_hookimpls():
            if _is_own(implementation.function):
                return f"the hook {name} of {Path(implementation.function.__code__.co_filename).name} comes before it"
    return None


def _is_own(function: Any) -> bool:
    """Tell whether a user wrote a function, in a conftest or wherever: whether it is of no installed package."""
    module = str(getattr(function, "__module__", "")).partition(".")[0]
    if module in ("_pytest", "pytest", "xdist", "pytest_benchflow"):
        return False
    code = getattr(function, "__code__", None)
    return code is None or not any(part in _INSTALLED for part in Path(code.co_filename).parts)
