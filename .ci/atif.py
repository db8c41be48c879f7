"""Validate trajectories with the models of PyPI's harbor, in an environment that has it.

python .ci/atif.py FILE.jsonl…
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harbor.models.trajectories import Trajectory

for name in sys.argv[1:]:
    documents = [json.loads(line) for line in Path(name).read_text("utf-8").split("\n") if line]
    for document in documents:
        # What the models make of it is the same again: nothing was taken for something else.
        if Trajectory.model_validate(document).to_json_dict() != document:
            sys.exit(f"{name}: {document['trajectory_id']} changes when it is read")
    damaged = json.loads(json.dumps(documents[0]))
    damaged["steps"][0]["step_id"] = 7
    try:
        Trajectory.model_validate(damaged)
    except ValueError:
        print(f"{Path(name).name}: {len(documents)} trajectories valid, a damaged one refused")
    else:
        sys.exit(f"{name}: a trajectory whose steps are numbered wrong was called valid")
