"""The case library: raw artifacts of rollouts, and what a right program says about them."""

from __future__ import annotations

import io
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli
from tests.cases.check_cases import HERE as LIBRARY
from tests.cases.check_cases import Done, cases_of, check_case, main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def in_this_process(arguments: Sequence[str], place: Path) -> Done:
    """Run the command as its own process would, without paying for a start each time."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(place), redirect_stdout(out), redirect_stderr(err):
        try:
            code = cli.main(arguments)
        except SystemExit as ended:
            code = int(ended.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.mark.parametrize("case", cases_of(LIBRARY), ids=lambda case: case.name)
def test_case(case: Path) -> None:
    problems = check_case(case, in_this_process)
    assert not problems, "\n".join(problems)


def test_the_library_is_checked_by_the_installed_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{sys.executable} -m pytest_benchflow.cli"
    assert main(["--only", "c0[12]*", "--command", command, "--jobs", "2"]) == 0
    assert capsys.readouterr().out == "2 passed, 0 failed\n"


def test_a_program_that_says_nothing_fails_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--command", "true", "--only", "[ac]1*"]) == 1
    out = capsys.readouterr().out
    assert "0 passed" in out
    assert "FAIL c10_verifier_too_early: exit 0, no review on stdout" in out
