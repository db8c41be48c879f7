"""Show the matrix that a session collected, with counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_benchflow.report.text import counted, one_line

if TYPE_CHECKING:
    import pytest

    from pytest_benchflow.fixtures import Runs
    from pytest_benchflow.rollout.config import RolloutConfig


def write_matrix(terminal: pytest.TerminalReporter, runs: Runs) -> None:
    """Write how many rollouts the collected items stand for, in all and by agent, model and skill mode."""
    session = terminal._session
    cells: dict[tuple[str, str], RolloutConfig] = {}
    for item in session.items if session is not None else ():
        cell = runs.cell_of(item)
        if cell is not None:
            cells.setdefault((str(cell.task), cell.cell_id), cell)
    if cells:
        terminal.write_sep("=", "matrix")
        for line in matrix_lines(list(cells.values()), runs):
            terminal.write_line(line)


def matrix_lines(cells: list[RolloutConfig], runs: Runs) -> list[str]:
    """Return the counts of cells in lines for people."""
    from pytest_benchflow.rollout.cell import task_of
    from pytest_benchflow.rollout.plan import plan

    tasks = {task_of(cell).path: task_of(cell) for cell in cells}
    axes = {
        "task": len(tasks),
        "agent": len({cell.agent_name for cell in cells}),
        "model": len({cell.model for cell in cells} - {"none"}) or 1,
        "skill mode": len({cell.skills for cell in cells}),
        "trial": len({cell.trial for cell in cells}),
    }
    product = 1
    for count in axes.values():
        product *= count
    axes_told = " x ".join(counted(count, name) for name, count in axes.items())
    canaries = sum(cell.canary for cell in cells)
    marked = f", {canaries} of them canaries" if canaries else ""
    total = counted(len(cells), "rollout")
    # An agent without a model, or a task without skills, makes fewer than the product.
    lines = [f"{axes_told} = {total}{marked}" if product == len(cells) else f"{axes_told}: {total}{marked}"]
    arms = Counter((cell.agent_name, cell.model, cell.skills) for cell in cells)
    first = Counter((cell.agent_name, cell.model, cell.skills) for cell in cells if cell.canary)
    for arm, count in arms.items():
        lines.append(
            f"  {' · '.join(map(one_line, arm))}: {count}" + (f", canaries {first[arm]}" if first[arm] else "")
        )
    names = sorted({one_line(task_of(cell).name) for cell in cells if cell.canary})
    lines += [f"canaries: {', '.join(names)}"] if names else []
    if runs.settings.exclude:
        whole = replace(runs.settings, exclude=())
        left_out = sum(len(plan(whole, task)) - len(plan(runs.settings, task)) for task in tasks.values())
        lines.append(f"left out by [[exclude]], of these tasks: {left_out}")
    return lines
