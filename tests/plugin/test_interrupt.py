"""Ctrl-C and its like: what was done is shown, and where to find what was cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli
from pytest_benchflow.catalog.load import read_toml
from pytest_benchflow.catalog.write import manifest_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.plugin.bench import Bench

_LIMIT_SEC = 60.0
# Signals that come so soon after one are the same.
_TOGETHER_SEC = 2.0
# A backend that is let go of only when a file says so.
SLOW_TO_CLOSE = """
import asyncio
from pathlib import Path

from pytest_benchflow.sandboxes.scripted import ScriptedBackend

HERE = Path(__file__).parent


class Slow(ScriptedBackend):
    name = "slow"

    async def close(self):
        (HERE / "closing").touch()
        while not (HERE / "go").exists():
            await asyncio.sleep(0.05)
        await super().close()


def pytest_benchflow_sandboxes():
    return {"slow": Slow()}
"""


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_an_interrupt_shows_the_table_and_what_was_cut_off(bench: Bench, workers: str) -> None:
    bench.task("a-quick-one")
    bench.task("b-endless", solve="#!/bin/sh\ntouch /app/begun\nsleep 600\n")
    command = [sys.executable, "-m", "pytest", "tasks", "-m", "rollout", "--benchflow-agent=oracle", "-n", workers]
    environment = {**os.environ, "COLUMNS": "80"}
    with subprocess.Popen(command, cwd=bench.path, env=environment, stdout=subprocess.PIPE, text=True) as run:
        end = time.monotonic() + _LIMIT_SEC
        # The quick one is over, and the agent of the endless one is at work.
        while not (
            list(bench.path.glob("jobs/*/a-quick*/result.json"))
            and list(bench.path.glob("jobs/*/b-endless*/prompts.json"))
        ):
            assert time.monotonic() < end, "the rollouts did not start"
            time.sleep(0.1)
        time.sleep(1)
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=_LIMIT_SEC)
    assert run.returncode == 2
    lines = output.splitlines()
    assert any(line.startswith("a-quick-one  oracle  solved") for line in lines), output
    assert any(line.startswith("interrupted: jobs/") and "/b-endless__oracle__" in line for line in lines), output
    assert "not removed" not in output  # what workers are still removing is not left behind


def test_parity_that_is_ended_leaves_nothing(bench: Bench) -> None:
    file = bench.path / "agents/acp/baseline/manifest.toml"
    assert cli.main(["agents", "export", str(bench.path / "agents")]) == 0
    values = read_toml(file)
    file.write_text(manifest_text(values | {"launch_cmd": "sleep 600\n" + values["launch_cmd"]}), "utf-8")
    scratch = bench.path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pytest", "--benchflow-manifests=agents", "-k", "baseline"]
    with subprocess.Popen(command, cwd=bench.path, env={**os.environ, "TMPDIR": str(scratch)}) as run:
        end = time.monotonic() + _LIMIT_SEC
        while not list(scratch.glob("*/*/parity-baseline/sandbox")):
            assert time.monotonic() < end, "the sandbox did not start"
            time.sleep(0.1)
        time.sleep(1)
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=_LIMIT_SEC)
    assert run.returncode == 2
    assert not list(scratch.glob("*/*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["terminated", "ctrl-c"])
def test_a_signal_while_a_session_ends_cuts_nothing_short_and_a_second_ends_it_at_once(
    bench: Bench, number: signal.Signals
) -> None:
    bench.task()
    (bench.path / "conftest.py").write_text(SLOW_TO_CLOSE, "utf-8")
    command = [sys.executable, "-m", "pytest", "tasks", "-m", "rollout", "--benchflow-agent=nop"]
    command += ["--benchflow-sandbox=slow", "-p", "no:cacheprovider"]

    @contextmanager
    def ending() -> Iterator[subprocess.Popen[str]]:
        (bench.path / "closing").unlink(missing_ok=True)
        out = subprocess.PIPE
        with subprocess.Popen(command, cwd=bench.path, stdout=out, stderr=subprocess.STDOUT, text=True) as run:
            try:
                end = time.monotonic() + _LIMIT_SEC
                while not (bench.path / "closing").exists():
                    assert run.poll() is None and time.monotonic() < end, "the session did not come to its end"
                    time.sleep(0.05)
                yield run
            finally:
                run.kill()  # it waits for ever for what a test that fails does not say

    with ending() as run:
        end = time.monotonic() + _LIMIT_SEC
        # More than two where the machine is so slow that those were seen together.
        while run.poll() is None and time.monotonic() < end:
            run.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                run.wait(_TOGETHER_SEC + 0.5)
        output, _ = run.communicate(timeout=_LIMIT_SEC)
    assert run.returncode == -number, output
    assert "Traceback" not in output
    with ending() as run:
        run.send_signal(number)
        time.sleep(0.5)
        (bench.path / "go").touch()
        output, _ = run.communicate(timeout=_LIMIT_SEC)
    assert run.returncode == 0, output
    assert "Traceback" not in output
    assert "1 unsolved" in output
