from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import VerifierError
from pytest_benchflow.rollout.verify import combine, read_rewards

if TYPE_CHECKING:
    from pathlib import Path


def test_reward_json_wins_over_reward_txt(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").write_text('{"reward": 0.25, "style": 1}')
    assert read_rewards(tmp_path) == {"reward": 0.25, "style": 1.0}


def test_a_single_other_name_is_the_reward(tmp_path: Path) -> None:
    (tmp_path / "reward.json").write_text('{"accuracy": 0.5}')
    assert read_rewards(tmp_path) == {"reward": 0.5, "accuracy": 0.5}


def test_no_reward_file_is_unknown_and_not_zero(tmp_path: Path) -> None:
    assert read_rewards(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("reward.txt", "nan", id="nan-text"),
        pytest.param("reward.txt", "inf", id="infinite-text"),
        pytest.param("reward.txt", "", id="empty-text"),
        pytest.param("reward.txt", "one", id="word"),
        pytest.param("reward.txt", "1_0", id="underscore"),
        pytest.param("reward.txt", "\u0661", id="other-digits"),
        pytest.param("reward.txt", "1" + "0" * 10**6, id="a-million-digits"),
        pytest.param("reward.txt", "1 1", id="two-numbers"),
        pytest.param("reward.json", '{"reward": NaN}', id="nan-json"),
        pytest.param("reward.json", '{"reward": 1e999}', id="overflow"),
        pytest.param("reward.json", '{"reward": true}', id="boolean"),
        pytest.param("reward.json", '{"reward": "1"}', id="string"),
        pytest.param("reward.json", '{"reward": null}', id="null"),
        pytest.param("reward.json", "[1]", id="list"),
        pytest.param("reward.json", "{}", id="empty-object"),
        pytest.param("reward.json", '{"a": 1, "b": 0}', id="no-name-is-the-reward"),
    ],
)
def test_what_is_no_finite_number_is_a_verifier_error(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(VerifierError) as caught:
        read_rewards(tmp_path)
    assert caught.value.category == "invalid_reward"


def test_a_reward_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("1")
    (tmp_path / "reward.txt").symlink_to(tmp_path / "elsewhere")
    assert read_rewards(tmp_path) is None


@pytest.mark.parametrize(
    ("strategy", "scores", "steps", "expected"),
    [
        pytest.param("mean", [{"reward": 1.0}, {"reward": 0.5}], 2, 0.75, id="mean"),
        pytest.param("final", [{"reward": 1.0}, {"reward": 0.5}], 2, 0.5, id="final"),
        pytest.param("mean", [{"reward": 1.0}], 2, 0.5, id="mean-of-an-aborted-task"),
        pytest.param("final", [{"reward": 1.0}], 2, 0.0, id="final-of-an-aborted-task"),
    ],
)
def test_steps_combine(strategy: str, scores: list[dict[str, float]], steps: int, expected: float) -> None:
    assert combine(list(scores), strategy, steps)["reward"] == expected
