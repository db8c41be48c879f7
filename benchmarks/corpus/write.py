"""Write a corpus, and read back what it says of itself."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.corpus.plan import Options, Outcome, plan
from benchmarks.corpus.rollouts import write_rollout

if TYPE_CHECKING:
    from pathlib import Path


def write_corpus(root: Path, options: Options) -> list[Outcome]:
    """Write the rollouts and corpus.json. Raises: FileExistsError when `root` holds something."""
    if root.exists() and any(root.iterdir()):
        raise FileExistsError(f"{root} is not empty; name a directory that is, or one that does not exist")
    root.mkdir(parents=True, exist_ok=True)
    outcomes = [write_rollout(root, spec, options) for spec in plan(options)]
    said = {"options": asdict(options), "rollouts": [asdict(outcome) for outcome in outcomes]}
    (root / "corpus.json").write_text(json.dumps(said, indent=1) + "\n")
    return outcomes


def read_corpus(root: Path) -> tuple[Options, list[Outcome]]:
    """Return what a corpus was made with, and what it holds."""
    said = json.loads((root / "corpus.json").read_bytes())
    return Options(**said["options"]), [Outcome(**rollout) for rollout in said["rollouts"]]
