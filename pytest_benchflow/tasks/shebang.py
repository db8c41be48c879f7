"""Read the first line of a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The kernel looks no further.
_LONGEST = 256


def interpreter(script: Path) -> list[str]:
    """Return the command that a script's first line names, split as the kernel does; bash when it names none.

    So a script runs as it says although its executable bit was lost.
    """
    with script.open("rb") as file:
        first = file.readline(_LONGEST).decode("utf-8", "replace").strip()
    named = first[2:].split(maxsplit=1) if first.startswith("#!") else []
    return named or ["bash"]
