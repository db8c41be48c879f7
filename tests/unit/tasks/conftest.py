from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.tasks.places import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files of a task named `tea-timer` and return its directory; None leaves one of the usual files out."""

    def make(files: dict[str, str | None] | None = None, *, document: bool = False) -> Path:
        usual = {"tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n", "environment/Dockerfile": "FROM debian:12\n"}
        usual |= {"task.md": "---\n---\nBrew.\n"} if document else {"task.toml": "", "instruction.md": "Brew.\n"}
        root = tmp_path / "tea-timer"
        for name, content in {**usual, **(files or {})}.items():
            if content is not None:
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
        return root

    return make
