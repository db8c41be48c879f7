"""The score is the verifier's, and the verifier was able to give one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import orjson

from pytest_benchflow.checks._check import check
from pytest_benchflow.records.owner import TaskText
from pytest_benchflow.records.values import mapping, number, reward_of, sequence
from pytest_benchflow.records.verifier import dead_bootstrap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout

_LONGEST = 1 << 20


@check(category="verifier", needs=("result",))
def check_verifier_could_start(rollout: Rollout) -> None:
    """A reward of 0 is that of tests which ran, not of a verifier that could not install or start them."""
    for place, reward in _scored(rollout):
        failed = reward is not None and reward <= 0 and place.is_dir()
        dead = dead_bootstrap(place, TaskText(asked=_asked(rollout))) if failed else None
        assert dead is None, f"the verifier could not start its tests, so that its reward says nothing: {dead}"


@check(category="verifier", needs=("result",))
def check_reward_is_the_verifiers(rollout: Rollout) -> None:
    """The reward in result.json is the one that the verifier wrote, where what it wrote was kept."""
    for place, reward in _scored(rollout):
        written = _written(place) if reward is not None else None
        agrees = written is None or math.isclose(written, reward or 0.0, rel_tol=0, abs_tol=1e-6)
        assert agrees, f"result.json has the reward {reward}; the verifier wrote {written} into {place.name}/"


def _written(place: Path) -> float | None:
    """Return the reward in a verifier's reward.json, else in its reward.txt; None when none can be read there."""
    if not place.is_dir():
        return None
    structured, plain = (_text(place / name) for name in ("reward.json", "reward.txt"))
    try:
        if structured is not None:
            values = mapping(orjson.loads(structured))
            return number(values.get("reward", next(iter(values.values()), None) if len(values) == 1 else None))
        return number(float(plain)) if plain is not None else None
    except ValueError:
        return None


def _asked(rollout: Rollout) -> str:
    """Return what the agent was asked: whether it had to install what its verifier misses."""
    try:
        prompts = sequence(orjson.loads(_text(rollout.dir.prompts) or "[]"))
    except ValueError:
        return ""
    return "\n".join(str(mapping(item).get("prompt") or item) for item in prompts)


def _text(path: Path) -> str | None:
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(_LONGEST).decode("utf-8", "replace")


def _scored(rollout: Rollout) -> Iterator[tuple[Path, float | None]]:
    """Yield where a verifier's output is, and the reward that it gave; a task of several steps has several."""
    yield rollout.dir.verifier, rollout.reward
    for step, rewards in mapping(rollout.result.get("step_rewards")).items():
        place = rollout.dir.verifier / step
        # Names come from a record that anyone may have written: only a directory right there is looked into.
        if place.parent == rollout.dir.verifier and step not in ("", ".", "..") and not place.is_symlink():
            yield place, reward_of({"rewards": rewards})
