"""--benchflow-skills: which skill modes a task is run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugin.bench import TASK_TOML

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

SKILL = "---\nname: writing\ndescription: How to write done.\n---\nUse echo.\n"


@pytest.mark.parametrize(
    ("mode", "skilled", "plain"),
    [
        ("default", ["default"], ["default"]),
        ("with", ["with"], ["with"]),
        ("without", ["without"], ["without"]),
        ("both", ["with", "without"], ["default"]),
    ],
)
def test_modes_make_cells(bench: Bench, mode: str, skilled: list[str], plain: list[str]) -> None:
    bench.task("plain")
    task = bench.task("skilled", toml=TASK_TOML + '[environment]\nskills_dir = "/skills"\n')
    bench.write(task / "environment" / "skills" / "writing", {"SKILL.md": SKILL})
    ids = bench.ids("tasks", "-m", "rollout", "--benchflow-agent=nop", f"--benchflow-skills={mode}")
    for name, modes in (("skilled", skilled), ("plain", plain)):
        assert [line.split("-none-")[1].split("-")[0] for line in ids if f"tasks/{name}/" in line] == modes


def test_skills_that_a_task_does_not_ship_are_a_skip(bench: Bench) -> None:
    bench.task()
    done = bench.run("tasks", "-m", "rollout", "-rs", "--benchflow-agent=nop", "--benchflow-skills=with")
    assert done.ret == 1
    assert done.parseoutcomes()["skipped"] == 1
    assert "ships no skills" in done.stdout.str()
