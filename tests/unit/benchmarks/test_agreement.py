"""A review finds in a corpus what the corpus says of itself, and the comparison can fail."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.agreement import disagreements
from benchmarks.corpus.plan import CORRUPTIONS, Options
from benchmarks.corpus.protocols import PROTOCOLS
from benchmarks.corpus.write import read_corpus, write_corpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.corpus.plan import Outcome

SMALL = Options(
    rollouts=60,
    exchanges=6,
    tool_bytes=120,
    system_bytes=100,
    tools=3,
    protocol="mixed",
    retry_fraction=0.25,
    incomplete_fraction=0.2,
    corrupt_fraction=0.25,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    write_corpus(root, SMALL)
    return root


def test_review_agrees_with_the_corpus(corpus: Path) -> None:
    _, outcomes = read_corpus(corpus)
    assert {outcome.corruption for outcome in outcomes} == {None, *CORRUPTIONS}
    assert {(outcome.protocol, outcome.training_ready) for outcome in outcomes} == {
        (protocol, ready) for protocol in PROTOCOLS for ready in (True, False)
    }
    assert any(len(outcome.counted_exchanges) < outcome.exchanges for outcome in outcomes)
    assert disagreements(corpus) == []


def remove_row(rollout: Path) -> None:
    (rollout / "results.jsonl").unlink()


def cut_log(rollout: Path) -> None:
    log = rollout / "trajectory" / "llm_trajectory.jsonl"
    log.write_bytes(log.read_bytes()[:-40])


def drop_exchange(rollout: Path) -> None:
    log = rollout / "trajectory" / "llm_trajectory.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        pytest.param(remove_row, "healthy is False, not True", id="no-row"),
        pytest.param(cut_log, "healthy is False, not True", id="torn-line"),
        pytest.param(drop_exchange, "counts [0, 1, 2, 3, 4], not [0, 1, 2, 3, 4, 5]", id="lost-exchange"),
    ],
)
def test_damage_the_corpus_does_not_know_of_is_named(
    corpus: Path, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    outcome = plain(corpus)
    copy_of(corpus, tmp_path, outcome)
    assert disagreements(tmp_path) == []
    damage(tmp_path / outcome.directory)
    found = disagreements(tmp_path)
    assert any(line.startswith(outcome.directory) and said in line for line in found), found


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_damage_taken_for_health_is_named(corpus: Path, tmp_path: Path, corruption: str) -> None:
    _, outcomes = read_corpus(corpus)
    outcome = next(outcome for outcome in outcomes if outcome.corruption == corruption)
    copy_of(corpus, tmp_path, outcome, healthy=True)
    (line,) = disagreements(tmp_path)
    assert "healthy is False, not True" in line


def test_same_options_write_the_same_bytes_everywhere(corpus: Path) -> None:
    digest = hashlib.sha256()
    for path in sorted(path for path in corpus.rglob("*") if path.is_file()):
        digest.update(path.relative_to(corpus).as_posix().encode() + b"\0" + path.read_bytes())
    assert digest.hexdigest() == "177250cb78a09ec01c8e9110adbb695d60d763c76cf32c31e0d5d35198d33bfa"


def test_corpus_is_written_into_an_empty_directory_only(corpus: Path) -> None:
    with pytest.raises(FileExistsError, match="not empty"):
        write_corpus(corpus, SMALL)


def plain(corpus: Path) -> Outcome:
    """Return a healthy rollout without retries."""
    _, outcomes = read_corpus(corpus)
    return next(o for o in outcomes if o.healthy and o.training_ready and len(o.counted_exchanges) == o.exchanges)


def copy_of(corpus: Path, target: Path, outcome: Outcome, **changes: Any) -> None:
    """Make a corpus of one rollout, about which corpus.json says `changes`."""
    shutil.copytree(corpus / outcome.directory, target / outcome.directory)
    said = json.loads((corpus / "corpus.json").read_bytes())
    said["rollouts"] = [each | changes for each in said["rollouts"] if each["directory"] == outcome.directory]
    (target / "corpus.json").write_text(json.dumps(said), encoding="utf-8")
