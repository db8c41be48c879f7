"""Write a new task that runs as it is: an oracle scores 1, an agent that does nothing 0."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_benchflow.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_TASK_TOML = """\
schema_version = "1.4"

[task]
name = "{name}"
description = "Say in one sentence what is to be done."
keywords = []

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 600

[verifier]
timeout_sec = 60
network_mode = "no-network"

[environment]
network_mode = "no-network"
cpus = 1
memory_mb = 2048
"""

_INSTRUCTION = """\
Write the sum of the numbers in `/app/numbers.txt`, one number a line, to `/app/sum.txt`.
"""

_DOCKERFILE = """\
FROM python:3.11-slim
WORKDIR /app
COPY numbers.txt /app/
"""

_NUMBERS = """\
12
30
-7
"""

_SOLVE = """\
#!/bin/bash
set -eu
cd /app
python3 -c 'print(sum(int(line) for line in open("numbers.txt")))' > sum.txt
"""

_TEST = """\
#!/bin/bash
# score.py writes the reward; where it cannot run there is none, which is not the same as a reward of 0.
exec python3 -I /tests/score.py
"""

_SCORE = '''\
"""Score the work: the reward is the share of checks that hold."""

import json
from pathlib import Path

APP = Path("/app")
LOGS = Path("/logs/verifier")
EXPECTED = 35


def written_number():
    try:
        return int((APP / "sum.txt").read_text())
    except (OSError, ValueError):
        return None


checks = {"the sum is right": written_number() == EXPECTED}
for name, holds in checks.items():
    print("ok  " if holds else "FAIL", name)
LOGS.mkdir(parents=True, exist_ok=True)
(LOGS / "reward.json").write_text(json.dumps({"reward": sum(checks.values()) / len(checks)}))
'''

_FILES = {
    "task.toml": _TASK_TOML,
    "instruction.md": _INSTRUCTION,
    "environment/Dockerfile": _DOCKERFILE,
    "environment/numbers.txt": _NUMBERS,
    "solution/solve.sh": _SOLVE,
    "tests/test.sh": _TEST,
    "tests/score.py": _SCORE,
}


def new_task(directory: Path, name: str | None = None) -> list[Path]:
    """Write a task skeleton into the new directory `directory` and return its files.

    `name` is what the task is called, by default what the directory is. Raises: UsageError.
    """
    name = name or directory.name
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*(/[A-Za-z0-9][\w.+-]*)?", name, re.ASCII):
        raise UsageError(
            f"a task cannot be named {name!r}; letters, digits, dots, dashes and underscores are allowed, "
            "with a letter or a digit first"
        )
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{directory} exists already; name a directory that is still to be made") from None
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}; name a place you may write to") from None
    for relative, content in _FILES.items():
        path = directory / relative
        path.parent.mkdir(exist_ok=True)
        path.write_text(content.replace("{name}", name) if relative == "task.toml" else content, encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)
    return [directory / relative for relative in _FILES]
