from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks.shebang import interpreter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "command"),
    [
        (b"#!/bin/sh\necho\n", ["/bin/sh"]),
        (b"#! /usr/bin/env  -S python3 -I\n", ["/usr/bin/env", "-S python3 -I"]),
        (b"#!/bin/sh\r\necho\r\n", ["/bin/sh"]),
        (b"#!\n", ["bash"]),
        (b"echo\n", ["bash"]),
        (b"", ["bash"]),
        (b"\xff\xfe", ["bash"]),
    ],
    ids=["plain", "argument", "windows", "bare", "none", "empty", "undecodable"],
)
def test_a_script_runs_as_its_first_line_says(tmp_path: Path, text: bytes, command: list[str]) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes(text)
    assert interpreter(script) == command


@pytest.mark.parametrize(
    "text", [b"#!/bin/sh\0\necho\n", b"#!\xff\xfe/bin/sh\n", b"#!\0\0\0"], ids=["nul", "undecodable", "only-nul"]
)
def test_a_first_line_that_is_no_text_is_the_tasks_error(tmp_path: Path, text: bytes) -> None:
    script = tmp_path / "run.sh"
    script.write_bytes(text)
    with pytest.raises(TaskError, match=r"run\.sh: the first line is b'#!.* belong"):
        interpreter(script)
