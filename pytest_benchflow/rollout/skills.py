"""Decide whether an agent gets the skills its task ships, and put them where it can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.errors import UnsupportedError

if TYPE_CHECKING:
    from pytest_benchflow.contracts import Sandbox
    from pytest_benchflow.rollout.config import SkillMode
    from pytest_benchflow.tasks.task import Task

_DEFAULT_TARGET = "/skills"


def skill_mode(asked: SkillMode, task: Task) -> str:
    """Return with-skill or no-skill, as artifacts name it. Raises: UnsupportedError: skills asked for, none shipped."""
    if asked == "with" and not task.skills:
        raise UnsupportedError(f"{task.name} ships no skills, and skills=with was asked for; use both or default")
    return "with-skill" if task.skills and asked != "without" else "no-skill"


async def bring_skills(task: Task, sandbox: Sandbox, mode: str) -> str | None:
    """Copy the task's skills into the sandbox and return where they are; None: this rollout has none."""
    if mode != "with-skill" or task.skills_path is None:
        return None
    target = task.environment.skills_dir or _DEFAULT_TARGET
    await sandbox.upload(task.skills_path, target)
    return target
