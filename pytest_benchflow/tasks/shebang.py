"""Read the first line of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.errors import TaskError

if TYPE_CHECKING:
    from pathlib import Path

# The kernel looks no further.
_LONGEST = 256


def interpreter(script: Path) -> list[str]:
    """Return the command that a script's first line names, split as the kernel does; bash when it names none.

    So a script runs as it says although its executable bit was lost. Raises: TaskError for a line that is no text.
    """
    with script.open("rb") as file:
        first = file.readline(_LONGEST)
    if not first.startswith(b"#!"):
        return ["bash"]
    try:
        named = first[2:].decode("utf-8").split(maxsplit=1)
    except UnicodeDecodeError:
        named = ["\0"]
    if any("\0" in word for word in named):
        raise TaskError(f"{script}: the first line is {first[:60]!r}, where #! and the path of a program belong")
    return [word.strip() for word in named] or ["bash"]
