"""Recover the list of skills that an agent showed its model at the start, in whatever form the agent writes it."""

from __future__ import annotations

import hashlib
import html
import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.checks._actions import text_of
from pytest_benchflow.checks._evidence import once, rebuilt
from pytest_benchflow.errors import RecordError
from pytest_benchflow.records.values import mapping, sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_benchflow.records.rollout import Rollout

# <available_skills> with an element for each: OpenHands, Gemini CLI, opencode, Cursor, this package's own agent.
_BLOCK = re.compile(
    r"<available_skills(?: [^>]{0,500})?>((?:(?!<available_skills[ >]).)*?)</available_skills>", re.DOTALL
)
_ELEMENT = re.compile(
    r"<name>\s{0,40}([^<]{0,200}?)\s{0,40}</name>|<skill\s[^>]{0,500}?\bname=[\"']([^\"']{1,200})|"
    r"<\w{0,20}skill\s[^>]{0,500}?=[\"'][^\"'>]{0,500}/([^/\"'>]{1,200})/SKILL\.md[\"']",
    re.DOTALL,
)
# A line that says a list follows: Claude Code, Codex, opencode.
_HEADING = re.compile(
    r"^[ \t]{0,40}(?:#{1,6}[ \t]{0,40}available(?: agent)? skills:?|available skills:|"
    r"[^\n]{0,300}?\bskills are available for use with the skill tool:)[ \t]{0,40}$",
    re.IGNORECASE | re.MULTILINE,
)
_ITEM = re.compile(r"^[ \t]*[-*][ \t]+(.+)$")
_NONE = re.compile(r"no (?:specialized )?skills (?:are )?(?:currently )?available", re.IGNORECASE)
# Lines of prose that may stand between the heading and its list.
_PROSE = 6
_LISTS_OF_SKILLS = ("task_skills", "expected_task_skills", "task_skill_names", "required_task_skills")


@once
def skill_facts(rollout: Rollout) -> dict[str, Any]:
    """Return {task_skills_loading, skill_catalog} as result.json holds them.

    The catalogue is {count, names, sha256, exchange_index}, null where the agent shows its model none; then nothing is
    known of skills that were given. Loading is 1 when the catalogue has every skill of the task, else 0.
    """
    catalogue = _catalogue(rollout)
    return {"task_skills_loading": _loading(rollout, catalogue), "skill_catalog": catalogue}


def skill_mode(rollout: Rollout) -> str | None:
    """Return with-skill or no-skill, None when the rollout does not say."""
    for part in ("config", "result"):
        try:
            said = getattr(rollout, part).get("skill_mode")
        except RecordError:
            continue
        mode = said.strip().lower().replace("_", "-") if isinstance(said, str) else ""
        if mode.startswith("with-skill") or mode in ("with", "skill", "skills"):
            return "with-skill"
        if mode in ("no-skill", "no-skills", "without", "without-skill", "without-skills", "none"):
            return "no-skill"
    return None


def task_skills(rollout: Rollout) -> list[str]:
    """Return the names of the skills that the task ships."""
    try:
        config = rollout.config
    except RecordError:
        return []
    for key in _LISTS_OF_SKILLS:
        named = [
            mapping(skill).get("name") if isinstance(skill, dict) else skill for skill in sequence(config.get(key))
        ]
        if named:
            return [name for name in named if isinstance(name, str)]
    return []


def lists(catalogue: Mapping[str, Any], skill: str) -> bool:
    """Tell whether a catalogue has a skill, by its own name or behind that of a plug-in."""
    return any(name == skill or name.endswith(f":{skill}") for name in catalogue["names"])


def _loading(rollout: Rollout, catalogue: Mapping[str, Any] | None) -> int | None:
    mode, skills = skill_mode(rollout), task_skills(rollout)
    if catalogue is not None and skills:
        return int(all(lists(catalogue, skill) for skill in skills))
    return 0 if mode == "no-skill" else None


def _catalogue(rollout: Rollout) -> dict[str, Any] | None:
    policy = [exchange for exchange in rebuilt(rollout).records if exchange.role == "policy"]
    first = min(policy, key=lambda exchange: exchange.order, default=None)
    if first is None:
        return None
    try:
        request = mapping(rollout.exchanges[first.index].get("request"))
    except (RecordError, IndexError):
        return None
    texts = list(_opening(mapping(request.get("body"))))
    for recover in (_elements, _items):
        found = [each for text in texts for each in recover(text)]
        if found:
            names = list(dict.fromkeys(name for each, _ in found for name in each))
            shown = "\n".join(text for _, text in found).encode("utf-8", "surrogatepass")
            return {
                "count": len(names),
                "names": names,
                "sha256": hashlib.sha256(shown).hexdigest(),
                "exchange_index": first.index,
            }
    return None


def _opening(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a request that stand before the model's first answer, and what its tools say of themselves."""
    for key in ("system", "instructions", "systemInstruction", "system_instruction"):
        yield text_of(body.get(key))
    for key in ("messages", "input", "contents"):
        for item in sequence(body.get(key)):
            if mapping(item).get("role") not in ("system", "developer", "user"):
                break
            yield text_of({name: mapping(item).get(name) for name in ("content", "parts")})
    for tool in sequence(body.get("tools")):
        yield from _descriptions(mapping(tool))


def _descriptions(tool: Mapping[str, Any]) -> Iterator[str]:
    for holder in (tool, mapping(tool.get("function")), *map(mapping, sequence(tool.get("functionDeclarations")))):
        if isinstance(holder.get("description"), str):
            yield holder["description"]


def _elements(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield (names, the text they stand in) for each list of elements."""
    if "<available_skills" not in text:
        return
    for match in _BLOCK.finditer(text):
        names = [html.unescape("".join(found)) for found in _ELEMENT.findall(match.group(1))]
        yield names or [name for line in match.group(1).split("\n") for name in _item(line)], match.group()


def _items(text: str) -> Iterator[tuple[list[str], str]]:
    """Yield (names, the text they stand in) for each list of items under a heading."""
    # Most texts of a request speak of no skill, whatever the case.
    if "skills" not in text.casefold():
        return
    for match in _HEADING.finditer(text) if "kill" in text else ():
        names: list[str] = []
        kept: list[str] = []
        margin = 0
        for number, line in enumerate(text[match.end() :].split("\n")[1:]):
            if line.lstrip().startswith(("#", "<")) or (not names and number >= _PROSE):
                break
            indent = len(line) - len(line.lstrip())
            # What is indented further belongs to the description of the skill above.
            if not names or indent <= margin:
                names += (found := _item(line))
                margin = indent if found else margin
            kept.append(line)
        if names:
            yield names, match.group() + "\n" + "\n".join(kept).rstrip()
    if _NONE.search(text):
        yield [], ""


def _item(line: str) -> list[str]:
    item = _ITEM.match(line)
    if item is None:
        return []
    # A plug-in's skill has a colon in its name; what describes it comes after a colon and a space.
    name = re.split(r":\s|\s\(|\s-\s", item.group(1), maxsplit=1)[0].rstrip(":").strip("*`\"' ")
    return [name] if re.fullmatch(r"[\w.:/@+-]+(?: [\w.-]+){0,3}", name) else []
