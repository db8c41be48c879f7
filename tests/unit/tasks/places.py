"""Types shared by the tests of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class Write(Protocol):
    """What the fixture `write` is."""

    def __call__(self, files: dict[str, str | None] | None = None, *, document: bool = False) -> Path: ...
