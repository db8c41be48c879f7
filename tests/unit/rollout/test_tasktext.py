from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.rollout.tasktext import task_text
from pytest_benchflow.tasks.load import load_task

if TYPE_CHECKING:
    from pathlib import Path


def test_a_task_says_what_it_asks_what_was_made_and_what_it_brings(tmp_path: Path) -> None:
    for name, text in {
        "task.toml": 'schema_version = "1.3"\n[task]\nname = "invented/books"\n',
        "instruction.md": "Write /app/balance.py.\n",
        "solution/solve.sh": "cp helper.py /app/ledger.py\n",
        "environment/Dockerfile": "FROM debian\nRUN pip install numpy\n",
        "environment/app/books/june.csv": "rent,1\n",
        "tests/test.sh": "fmtcheck /app/balance.py\n",
        "tests/deep/test_books.py": "import rareorbit\n",
        "tests/big.txt": "a" * 300_000 + " zebra",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    task = load_task(tmp_path)
    said = task_text(task, task.steps[0])
    assert [said.names(name) for name in ("balance", "ledger", "june", "numpy", "rent", "fmtcheck")] == [
        *(True, True, True),
        *(False, False, False),
    ]
    assert [said.runs(name) for name in ("fmtcheck", "rareorbit", "zebra", "june")] == [True, True, False, False]
    assert said.own_names == {"test.sh", "test_books.py", "big.txt"}
