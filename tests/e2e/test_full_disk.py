"""A full disk ends in one clear error, and what was captured is completed at the next start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.sandboxes._local.overlay import why_no_overlay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.conftest import MakeTask
    from tests.e2e.machine import Machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory on a disk of 96 KiB."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_full_jobs_disk_is_one_sentence_and_the_next_start_completes_it(
    make_task: MakeTask, small_disk: Path, machine: Machine, workers: str
) -> None:
    # The verifier's output alone is larger than the disk.
    task = make_task(verifier="#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x\necho 0 > /logs/verifier/reward.txt\n")
    root = task.parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    asked = ("tasks", "--benchflow-agent=oracle", f"--benchflow-jobs-dir={small_disk}", "--benchflow-job-name=full")
    run = machine.pytest(*asked, "-rs", "-n", workers, cwd=root)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1, output
    said = [line for line in output.splitlines() if "No space left on device" in line and not line.startswith("ERROR")]
    assert [line.partition("No space")[0].removeprefix(f"{small_disk}/full") for line in said] == [
        "/answer__oracle__none__default__1: its records could not be completed: ",
        " is not complete: ",
    ], output
    assert "the error of tasks/answer/task.toml::rollout[oracle-none-default-1] says why" in output
    assert "1 error" in output.splitlines()[-1]
    assert "failed" not in output.splitlines()[-1]
    assert "cannot run here" not in output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert machine.leftovers() == []

    subprocess.run(["mount", "-o", "remount,size=16m", small_disk], check=True)
    following = machine.pytest(
        "tasks", "--benchflow-agent=nop", f"--benchflow-jobs-dir={small_disk}", "-k", "rollout", "-q", cwd=root
    )
    output, _ = following.communicate(timeout=120)
    (killed,) = (small_disk / "full").glob("*__oracle__*")
    result = json.loads((killed / "result.json").read_text())
    assert result["verdict"] == "unhealthy"
    assert result["rewards"] is None


def test_a_full_temporary_disk_is_named_and_no_fault_of_this_package(
    make_task: MakeTask, small_disk: Path, machine: Machine
) -> None:
    (small_disk / "fill").write_bytes(bytes(88 << 10))
    root = make_task().parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    python = ("env", f"TMPDIR={small_disk}", sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    output, _ = machine.start(*python, "tasks", "--benchflow-agent=oracle", "-m", "rollout", cwd=root).communicate(
        timeout=120
    )
    assert "unhealthy (infra)" in output
    assert f"the sandbox's files do not fit below {small_disk}/" in output
    assert "set TMPDIR" in output
    assert "please report" not in output
    assert "Traceback" not in output
    assert machine.leftovers() == []
    assert not [path for path in small_disk.rglob("*") if path.is_file() and path.name != "fill"]


BUILT = "FROM debian:12-slim\nWORKDIR /app\nRUN head -c 3000000 /dev/zero >/app/data\n"
FILLING = "#!/bin/sh\nhead -c 30000000 /dev/zero >/app/more\necho 42 >/app/answer\n"


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    if reason := why_no_overlay(str(place.parent)):
        pytest.skip(reason)
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("size=40m", ("Dockerfile:3: RUN head", "exit code 1", "No space left on device")),
        ("size=100k", ("Dockerfile cannot be kept below", "No space left on device", "BENCHFLOW_CACHE_DIR")),
        ("ro", ("Dockerfile cannot be kept below", "Read-only file system", "BENCHFLOW_CACHE_DIR")),
    ],
    ids=["full-in-a-step", "full-beside-a-step", "read-only"],
)
def test_a_cache_disk_that_takes_no_image_is_told_in_a_sentence(
    make_task: MakeTask, tmp_path: Path, machine: Machine, options: str, said: tuple[str, ...]
) -> None:
    task = make_task()
    (task / "environment" / "Dockerfile").write_text(BUILT.replace("3000000", "90000000"))
    (task.parents[1] / "pytest.ini").write_text("[pytest]\n")
    with mounted(tmp_path / "disk", options) as cache:
        command = ("env", f"BENCHFLOW_CACHE_DIR={cache}", sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
        run = machine.start(*command, "tasks", "--benchflow-agent=oracle", "-m", "rollout", cwd=task.parents[1])
        output, _ = run.communicate(timeout=120)
        kept = list(cache.glob("layers/.*.draft-*"))
    assert "unhealthy (infra)" in output
    assert [words for words in said if words not in output] == [], output
    assert "Traceback" not in output
    assert kept == []
    assert machine.leftovers() == []


@pytest.mark.parametrize("dockerfile", ["FROM debian:12-slim\nWORKDIR /app\n", BUILT], ids=["plain", "built"])
def test_an_agent_that_fills_the_disk_gets_no_score_and_keeps_its_output(
    make_task: MakeTask, tmp_path: Path, machine: Machine, dockerfile: str
) -> None:
    task = make_task()
    root = task.parents[1]
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    (task / "solution" / "solve.sh").write_text(FILLING.replace("head", "echo begun\nhead"))
    (root / "pytest.ini").write_text("[pytest]\n")
    with mounted(tmp_path / "disk", "size=8m") as disk:
        command = ("env", f"TMPDIR={disk}", f"BENCHFLOW_CACHE_DIR={tmp_path}/cache", sys.executable, "-m", "pytest")
        asked = ("tasks", "--benchflow-agent=oracle", "-m", "rollout", "-p", "no:cacheprovider")
        output, _ = machine.start(*command, *asked, "--benchflow-job-name=full", cwd=root).communicate(timeout=120)
    assert "unhealthy (infra)" in output, output
    assert "the sandbox's files do not fit below" in output
    assert "Traceback" not in output
    (rollout,) = (root / "jobs" / "full").glob("*__oracle__*")
    result = json.loads((rollout / "result.json").read_text())
    assert (result["verdict"], result["rewards"]) == ("unhealthy", None)
    assert (rollout / "agent" / "stdout.txt").read_text() == "begun\n"
    assert machine.leftovers() == []


def test_a_jobs_directory_that_is_read_only_is_told_before_anything_runs(
    make_task: MakeTask, tmp_path: Path, machine: Machine
) -> None:
    root = make_task().parents[1]
    (root / "pytest.ini").write_text("[pytest]\n")
    with mounted(tmp_path / "disk", "ro") as disk:
        asked = ("tasks", "--benchflow-agent=oracle", f"--benchflow-jobs-dir={disk}")
        run = machine.pytest(*asked, cwd=root)
        output, _ = run.communicate(timeout=120)
    assert run.returncode not in (0, 1)
    (said,) = (line for line in output.splitlines() if line.startswith("ERROR: "))
    assert said.startswith(f"ERROR: the jobs directory {disk} cannot be used: Read-only file system; ")
    assert "Traceback" not in output
    assert machine.leftovers() == []
