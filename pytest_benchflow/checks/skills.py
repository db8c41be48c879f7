"""An agent with skills saw them, and one without did not."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._actions import actions
from pytest_benchflow.checks._catalogue import lists, skill_facts, skill_mode, task_skills
from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._deeds import deeds, prompted
from pytest_benchflow.checks._evidence import NotApplicableError, is_ours
from pytest_benchflow.checks._signals import in_vain
from pytest_benchflow.records.values import mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.checks._actions import Action
    from pytest_benchflow.records.rollout import Rollout

_SKILL_TOOLS = re.compile(r"(?:(?:invoke|activate|load|read|use|get)_?)?skill(?:_?load)?\Z", re.IGNORECASE)
_IN_CODE = re.compile(r"""['"]([^'"\n]*SKILL\.md)['"]""")


@check(category="infra", needs=("model", "llm", "config", "result"))
def check_task_skills_loaded(rollout: Rollout) -> None:
    """A with-skill rollout showed the model the task's skills at its start (task_skills_loading 1)."""
    if skill_mode(rollout) != "with-skill":
        raise NotApplicableError("the rollout has no skills")
    skills, facts = task_skills(rollout), skill_facts(rollout)
    if not skills:
        raise NotApplicableError("config.json names no skill of the task (task_skills)")
    catalogue = facts["skill_catalog"]
    if catalogue is None:
        recorded = rollout.result.get("task_skills_loading")
        assert recorded != 0, "result.json: task_skills_loading is 0, though the task's skills were to be given"
        raise NotApplicableError("not serialised: the agent shows its model no catalogue of skills")
    lost = [skill for skill in skills if not lists(catalogue, skill)]
    assert not lost, (
        f"task_skills_loading 0: the catalogue in exchange {catalogue['exchange_index']} lacks the task's skill "
        f"{', '.join(lost)} (it has {catalogue['count']})"
    )


@check(category="conduct", needs=("model", "llm", "config", "result"))
def check_no_skill_without_skills(rollout: Rollout) -> None:
    """A no-skill rollout had none of the task's skills: none in its catalogue, and no SKILL.md was read."""
    if skill_mode(rollout) != "no-skill":
        raise NotApplicableError("the rollout may have skills")
    skills, catalogue = task_skills(rollout), skill_facts(rollout)["skill_catalog"]
    shown = [skill for skill in skills if catalogue is not None and lists(catalogue, skill)]
    assert not shown, (
        f"a no-skill rollout: exchange {mapping(catalogue)['exchange_index']} lists the task's skill {', '.join(shown)}"
    )
    used = list(_used(rollout, skills))
    assert not used, f"a no-skill rollout: the agent {'; '.join(used[:3])}"
    recorded = rollout.result.get("task_skills_loading")
    assert recorded in (None, 0), f"result.json: task_skills_loading is {recorded!r} in a no-skill rollout"


@check(needs=("model", "llm", "result"))
def check_skill_catalog_agrees(rollout: Rollout) -> None:
    """What result.json says of skills (task_skills_loading, skill_catalog) is what the first request shows."""
    result, facts = rollout.result, skill_facts(rollout)
    for key in ("task_skills_loading", "skill_catalog"):
        recorded = result.get(key)
        # Other tools may describe a catalogue in their own way: then the number of its skills is compared.
        if not is_ours(rollout) and (recorded is None or facts[key] is None):
            continue
        if key == "skill_catalog" and isinstance(recorded, dict) and not is_ours(rollout):
            recorded = {**facts[key], "count": recorded.get("count", facts[key]["count"])}
        assert recorded == facts[key], f"result.json: {key} is {_short(recorded)}; the records say {_short(facts[key])}"


def _used(rollout: Rollout, skills: list[str]) -> Iterator[str]:
    """Yield what the agent read or called of skills."""
    for action, done in deeds(rollout):
        made = {operation.path for operation in done if operation.kind == "write"}
        paths = [operation.path for operation in done if operation.kind == "read"]
        paths += [
            path for operation in done if operation.kind == "code" for path in _IN_CODE.findall(operation.content or "")
        ]
        for path in dict.fromkeys(paths):
            if path not in made and _is_skill(path, skills, rollout) and not in_vain(action, path):
                yield f"read {path} ({action.place})"
    for action in actions(rollout):
        if _SKILL_TOOLS.match(action.tool) and (name := _named(action, skills)):
            yield f"called the skill {name} ({action.place})"


def _is_skill(path: str, skills: list[str], rollout: Rollout) -> bool:
    if any(f"/skills/{skill}/" in f"/{path}/" for skill in skills):
        return True
    above, _, name = path.rpartition("/")
    wild = above.rpartition("/")[0].endswith("/skills") and fnmatch.fnmatchcase("SKILL.md", name)
    # A task may be about a file of this name.
    return (wild or path.endswith("SKILL.md")) and "SKILL.md" not in prompted(rollout)


def _named(action: Action, skills: list[str]) -> str | None:
    given = action.arguments
    words = list(given.values()) if isinstance(given, dict) else [given]
    return next(
        (skill for skill in skills for word in words if isinstance(word, str) and word.split(":")[-1] == skill), None
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
