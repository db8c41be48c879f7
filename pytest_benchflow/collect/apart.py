"""Bring what a rollout says by Python's logging and warnings to the item that asks for it."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.rollout.flights import FLIGHT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pytest_benchflow.rollout.flights import Flight


class Apart:
    """Hooks that keep what a rollout says; it would be in the captured sections of whichever item runs just then."""

    def __init__(self) -> None:
        self._handlers: list[logging.Handler] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Take hold of pytest's handlers, which are there when all is configured."""
        plugin: Any = session.config.pluginmanager.get_plugin("logging-plugin")
        self._handlers = [plugin.caplog_handler, plugin.report_handler] if plugin else []
        for number, handler in enumerate(self._handlers):
            handler.addFilter(_keep if number == 0 else _pass_over)

    def pytest_unconfigure(self) -> None:
        """Leave pytest's handlers as they were."""
        for handler in self._handlers:
            handler.removeFilter(_keep)
            handler.removeFilter(_pass_over)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Keep warnings that come between two items."""
        with _warnings_apart():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Keep warnings that come while an item runs: pytest catches them for itself until it ends."""
        with _warnings_apart():
            return (yield)

    def deliver(self, flight: Flight) -> None:
        """Say, in the item that runs now, what a rollout said."""
        said, flight.said = flight.said, []
        for each in said:
            if isinstance(each, logging.LogRecord):
                for handler in self._handlers:
                    if each.levelno >= handler.level:
                        handler.handle(each)
            else:
                warnings.showwarning(*each)
        if flight.unsaid:
            logging.getLogger(__name__).warning("%s said %d more things in Python", flight.name, flight.unsaid)
            flight.unsaid = 0


@contextmanager
def _warnings_apart() -> Iterator[None]:
    usual = warnings.showwarning

    def show(*warning: Any, **more: Any) -> None:
        flight = FLIGHT.get()
        if flight is None:
            usual(*warning, **more)
        else:
            flight.keep(warning[:4])

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def _keep(record: logging.LogRecord) -> bool:
    flight = FLIGHT.get()
    if flight is not None:
        flight.keep(record)
    return flight is None


def _pass_over(record: logging.LogRecord) -> bool:  # noqa: ARG001 - the other of pytest's handlers keeps it
    return FLIGHT.get() is None
