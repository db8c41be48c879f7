"""Write a trainer row piece by piece: its steps repeat their history, so the whole line may be very long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator


def row_chunks(row: dict[str, Any]) -> Iterator[bytes]:
    """Yield a row as one line of strict JSON, without the newline, in pieces of a step each.

    Each message that several prompts hold as the same object is written once and copied from then on. Raises:
    TypeError when a value is no strict JSON.
    """
    steps = row.get("trajectory")
    if not isinstance(steps, list):
        yield orjson.dumps(row)
        return
    pieces: dict[int, orjson.Fragment] = {}

    def piece(message: Any) -> orjson.Fragment:
        known = pieces.get(id(message))
        if known is None:
            known = pieces[id(message)] = orjson.Fragment(orjson.dumps(message))
        return known

    head = orjson.dumps({key: value for key, value in row.items() if key != "trajectory"})
    yield head[:-1] + (b"," if len(row) > 1 else b"") + b'"trajectory":['
    for position, step in enumerate(steps):
        prompt = step.get("prompt") if isinstance(step, dict) else None
        written = {**step, "prompt": [piece(message) for message in prompt]} if isinstance(prompt, list) else step
        yield (b"," if position else b"") + orjson.dumps(written)
    yield b"]}"
