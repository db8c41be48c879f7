"""Whatever a client retries, drops, or hears too late: each used exchange counts once, in order, and tokens add up."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_benchflow.training.row import build_row
from tests.unit.rollouts import (
    Talk,
    assistant,
    call,
    config,
    exchange,
    result,
    result_of,
    system,
    tool,
    user,
    write_records,
)

TOKENS = st.tuples(st.integers(1, 10**6), st.integers(1, 10**4))
# What happens around one step of the policy, besides the answer that is used.
MISHAPS = st.lists(
    st.sampled_from(["error", "cut", "truncated", "filtered", "late", "retry_before", "retry_after", "side"]),
    max_size=3,
)
STEPS = st.lists(st.tuples(MISHAPS, st.integers(0, 3), TOKENS), min_size=1, max_size=12)
SIDE_TOOLS = [tool("web", "q")]


class Story(Talk):
    """A conversation that knows which of its exchanges were used."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[int] = []
        self.excluded: dict[int, str] = {}
        self.billed = 0
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"call_{self.count}"

    def add(self, record: Any, reason: str | None) -> None:
        if reason is None:
            self.used.append(len(self.records))
        else:
            self.excluded[len(self.records)] = reason
        usage = record["response"]["body"].get("usage") or {}
        self.billed += usage.get("total_tokens", 0)
        self.records.append(record | {"metadata": {"started_seq": len(self.records)}})

    def mishap(self, kind: str, tokens: tuple[int, int]) -> None:
        unused = assistant("", call(self.fresh()))
        if kind == "error":
            self.add(exchange(self.history, None, status=500), "provider_error")
        elif kind == "cut":
            self.add(exchange(self.history, assistant("cu"), finish=None, tokens=None), "partial")
        elif kind == "truncated":
            self.add(exchange(self.history, assistant("lo"), finish="length", tokens=tokens), "truncated")
        elif kind == "filtered":
            self.add(exchange(self.history, assistant(""), finish="content_filter", tokens=tokens), "filtered")
        elif kind == "late":
            self.add(exchange(self.history, unused, tokens=tokens), "unconsumed_tool_call")
            self.history.append(user(f"The model did not answer. Go on ({self.count})."))
        elif kind.startswith("retry"):
            self.add(exchange(self.history, unused, tokens=tokens), "superseded_retry")
        else:
            words = user(f"Summarise part {self.count}.")
            self.add(exchange([system("You condense."), words], assistant("Short."), tools=SIDE_TOOLS), None)


def tell(steps: list[tuple[list[str], int, tuple[int, int]]]) -> Story:
    """Play the steps; the last answer is plain text, so that the rollout ends as one that may train."""
    story = Story()
    for number, (mishaps, calls, tokens) in enumerate(steps):
        # A late answer ends its request for good, so it comes before the retries of the next one.
        for kind in sorted(mishaps, key=lambda kind: kind != "late"):
            if kind != "retry_after":
                story.mishap(kind, tokens)
        last = number == len(steps) - 1
        answer = assistant(f"step {number}", *(call(story.fresh()) for _ in range(0 if last else max(calls, 1))))
        story.add(exchange(story.history, answer, tokens=tokens), None)
        if not last:
            for kind in mishaps:
                if kind == "retry_after":
                    story.mishap(kind, tokens)
            story.history.append(answer)
            story.history += [result_of(each["id"]) for each in answer["tool_calls"]]
    return story


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_each_used_exchange_is_a_step_once_and_tokens_are_conserved(steps: Any) -> None:
    story = tell(steps)
    with tempfile.TemporaryDirectory() as directory:
        rundir = write_records(Path(directory), story.records)
        row = build_row(rundir, result=result(story.records), config=config())
    assert [step["extras"]["exchange_index"] for step in row.row["trajectory"]] == story.used
    assert {each["index"]: each["reason"] for each in row.exchanges if not each["selected"]} == story.excluded
    assert row.tokens["billed"] == story.billed == row.tokens["selected"] + row.tokens["excluded"]
    assert row.training_ready, row.row["error"]


@settings(max_examples=60, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_change_what_counts(steps: Any, random: Any) -> None:
    """Exchanges end in any order; what counts follows from when they started."""
    story = tell(steps)
    places = list(range(len(story.records)))
    random.shuffle(places)
    with tempfile.TemporaryDirectory() as directory:
        rundir = write_records(Path(directory), [story.records[place] for place in places])
        row = build_row(rundir, result=result(story.records), config=config())
    assert sorted(places[each["index"]] for each in row.exchanges if each["selected"]) == story.used
    assert row.training_ready, row.row["error"]
