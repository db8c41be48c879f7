"""Write deterministic corpora of agent rollouts, with the verdict that a review must reach on each.

    python -m benchmarks.corpus OUT [--rollouts N] [--exchanges N] [--protocol mixed] [--corrupt-fraction X] …

The same options write the same bytes on every machine. A rollout is a directory OUT/<task>__trial-<n>/ in the shape of
public BenchFlow runs. Every request in its llm_trajectory.jsonl carries the whole history so far, as a real agent's
does, and every step of its row in results.jsonl too: both files grow with the square of the number of exchanges.

OUT/corpus.json holds the options and, for each rollout, its protocol, its size in bytes, the indices of the exchanges
that count, and whether it is healthy; for a broken one, the kind of damage.

* A retried exchange is sent twice with the same request. Its first answer is a provider's error, or a complete one
  whose tool calls nobody used, or (responses) an incomplete one. Only the second counts.
* An incomplete rollout hits a time limit after half of its exchanges, with a tool call unanswered. Its artifacts are
  healthy; its row is not ready for training.
"""
