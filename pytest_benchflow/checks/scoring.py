"""The score is the verifier's, and the verifier was able to give one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.checks._check import check
from pytest_benchflow.records.values import mapping, reward_of
from pytest_benchflow.records.verifier import dead_bootstrap

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.records.rollout import Rollout


@check(category="verifier", needs=("result",))
def check_verifier_could_start(rollout: Rollout) -> None:
    """A reward of 0 is that of tests which ran, not of a verifier that could not install or start them."""
    for place, reward in _scored(rollout):
        dead = dead_bootstrap(place) if reward is not None and reward <= 0 else None
        assert dead is None, f"the verifier could not start its tests, so that its reward says nothing: {dead}"


def _scored(rollout: Rollout) -> Iterator[tuple[Path, float | None]]:
    """Yield where a verifier's output is, and the reward that it gave; a task of several steps has several."""
    yield rollout.dir.verifier, rollout.reward
    for step, rewards in mapping(rollout.result.get("step_rewards")).items():
        place = rollout.dir.verifier / step
        # Names come from a record that anyone may have written: only a directory right there is looked into.
        if place.parent == rollout.dir.verifier and step not in ("", ".", "..") and not place.is_symlink():
            yield place, reward_of({"rewards": rewards})
