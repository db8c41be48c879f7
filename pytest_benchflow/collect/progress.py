"""Show rollouts under way while a session runs, in one of two ways, or say nothing of them."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.report.board import Board
from pytest_benchflow.report.live import Live
from pytest_benchflow.report.plain import Plain, write_whole
from pytest_benchflow.report.region import Region
from pytest_benchflow.report.text import one_line
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_benchflow.report.terminal import RolloutReport
    from pytest_benchflow.settings import Settings

# Where one of these is set, what is on the screen is a log that others read.
_LOGGED = ("CI", "BUILD_NUMBER")


def make_progress(
    config: pytest.Config, settings: Settings, report: Callable[[], RolloutReport]
) -> ShownProgress | None:
    """Return the plugin that shows progress in the way that was asked for, None where nothing is shown."""
    tells = config.pluginmanager.hasplugin("terminal") and config.get_verbosity() >= 0 and not config.option.collectonly
    several = settings.concurrency > 1 or config.getoption("dist", "no") != "no"
    asked = settings.progress or (None if several else "off")
    if not tells or asked == "off":
        return None
    why_not = _why_not_live(config)
    if asked is None:
        asked = "plain" if why_not or any(map(host_variable, _LOGGED)) else "live"
    refused = why_not if asked == "live" else None
    return ShownProgress(config, settings, report, live=asked == "live" and not refused, refused=refused)


def _why_not_live(config: pytest.Config) -> str | None:
    """Return why nothing can be drawn."""
    if not sys.stdout.isatty():
        return "standard output is no terminal"
    if host_variable("TERM") in (None, "dumb"):
        return "TERM names no terminal that can be drawn on"
    if config.getoption("capture") in ("no", "tee-sys"):
        return "what tests write is not captured"
    return None


class ShownProgress:
    """Hooks of the process that leads: they hear of rollouts under way, and mind what pytest itself writes."""

    def __init__(
        self,
        config: pytest.Config,
        settings: Settings,
        report: Callable[[], RolloutReport],
        *,
        live: bool,
        refused: str | None,
    ) -> None:
        self.board = Board()
        self.plain = not live
        self._config = config
        self._settings = settings
        self._report = report
        self._refused = refused
        self._live: Live | None = None
        self._plain: Plain | None = None
        self._file: Any = None
        self._channels: list[Any] = []

    def channel_to(self, node: Any) -> Any:
        """Return by what a worker of xdist, on whatever machine, tells of its rollouts."""
        channel, name = node.gateway.newchannel(), node.gateway.id

        def hear(told: dict[str, Any] | None) -> None:
            if told is None:
                self.board.gone(name)
            else:
                self.board.take(told, name)

        channel.setcallback(hear, endmarker=None)
        self._channels.append(channel)
        return channel

    def pytest_sessionstart(self) -> None:
        """Take a way to the terminal that pytest's capture does not take over."""
        terminal: Any = self._terminal
        if self._refused:
            terminal.write_line(f"benchflow: --benchflow-progress=live: {self._refused}; plain lines instead")
        file = terminal._tw._file
        descriptor = os.dup(file.fileno())
        if self.plain:
            self._file = os.fdopen(descriptor, "w", encoding=file.encoding, errors="replace")
            self._plain = Plain(self.board, self._settings, self._write)
            self._plain.start()
            return
        files = [file, *([sys.stderr] if sys.stderr.isatty() and hasattr(sys.stderr, "__dict__") else [])]
        colour = bool(self._config.get_terminal_writer().hasmarkup)
        self._live = Live(self.board, Region(files, descriptor), self._settings, colour=colour)
        self._live.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None]:
        """Let no line come between what belongs together."""
        with self._pen():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None]:
        """Let no line come between what belongs together."""
        with self._pen():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None]:
        """Let no line come between what belongs together, and those that wait come now."""
        with self._pen():
            yield
            if self._plain is not None:
                self._plain.tell()

    def pytest_enter_pdb(self) -> None:
        """Leave the terminal to the debugger, for good."""
        if self._live is not None:
            self._live.close()
        if self._plain is not None:
            self._plain.pause()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        """Show how rollouts end that an interrupt cuts, and nothing after it."""
        try:
            return (yield)
        finally:
            self.close()

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind, however the session ends."""
        self.close()

    def close(self) -> None:
        """Tell what is left to tell, or leave the terminal as it was; safe to call twice."""
        if self._live is not None:
            live, self._live = self._live, None
            live.close()
            if live.error is not None:
                said = one_line(f"{type(live.error).__name__}: {live.error}")
                self._say(f"progress could not be shown: {said}")
        if self._plain is not None:
            plain, self._plain = self._plain, None
            plain.close()
            with suppress(OSError):  # the terminal is gone, which pytest tells of itself
                self._file.close()
        if self.board.fault is not None:
            fault, self.board.fault = self.board.fault, None
            self._say(f"progress may have been wrong: {one_line(fault)}")

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    def _say(self, what: str) -> None:
        with suppress(OSError):
            self._terminal.write_line(f"benchflow: {what}", yellow=True)

    def _pen(self) -> Any:
        return self._plain.pen if self._plain is not None else nullcontext()

    def _write(self, line: str) -> None:
        write_whole(self._terminal, self._file, self._report().interject, line)
