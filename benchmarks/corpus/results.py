"""The trainer row of a rollout, written piece by piece: each step's prompt is a stretch of one history."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from benchmarks.corpus.protocols import MODELS, chat_tool

if TYPE_CHECKING:
    from benchmarks.corpus.plan import Spec
    from benchmarks.corpus.turns import Json, Tool


class History:
    """A JSON array that only grows, kept as encoded text: each item is encoded once."""

    def __init__(self, *items: Json) -> None:
        self.text = ""
        self.extend(items)

    def extend(self, items: list[Json] | tuple[Json, ...]) -> None:
        encoded = ", ".join(json.dumps(item) for item in items)
        if encoded:
            self.text = f"{self.text}, {encoded}" if self.text else encoded

    @property
    def array(self) -> str:
        return f"[{self.text}]"


@dataclass(frozen=True)
class Step:
    """An exchange that counts."""

    index: int
    prompt_length: int  # of its prompt, within the history
    completion: str  # encoded
    body: str  # encoded


@dataclass(frozen=True)
class RowParts:
    prompt: str
    completion: str
    history: str
    steps: list[Step]
    metadata: Json
    tools: list[Tool]
    reward: float


def open_object(value: Json) -> str:
    """Encode an object without its closing brace, ready for one more key."""
    return json.dumps(value)[:-1] + ", "


def write_row(out: TextIO, spec: Spec, result: Json, parts: RowParts) -> None:
    out.write(open_object({"example_id": 0}))
    out.write(f'"prompt": {parts.prompt}, "completion": {parts.completion}, ')
    out.write(json.dumps(_facts(spec, result, parts))[1:-1])
    out.write(', "trajectory": [')
    steps = parts.steps
    if spec.corruption == "results-missing-step":
        steps = steps[:-1]
    for position, step in enumerate(steps):
        rest = {
            "tokens": None,
            "reward": parts.reward,
            "advantage": 0.0,
            "is_truncated": spec.incomplete,
            "trajectory_id": f"{spec.name}__llm_{step.index}",
            "extras": {
                "source": "llm_trajectory",
                "tracking_source": "litellm_callback",
                "exchange_index": step.index,
                **parts.metadata,
            },
        }
        out.write(
            f"{', ' if position else ''}"
            f'{{"prompt": [{parts.history[: step.prompt_length]}], "completion": {step.completion}, '
            f'"response": {step.body}, {json.dumps(rest)[1:]}'
        )
    out.write("]}\n")


def _facts(spec: Spec, result: Json, parts: RowParts) -> Json:
    """Return the row without its conversation."""
    usage = result["agent_result"]
    n_in, n_out = float(usage["n_input_tokens"]), float(usage["n_output_tokens"])
    said = result["error"]
    error = {"error": "agent_error", "error_chain_str": said, "error_chain_repr": said}
    why_not = "partial_trajectory" if spec.incomplete else None
    return {
        "info": {
            "task_id": spec.task,
            "task_name": spec.task,
            "rollout_name": spec.name,
            "environment": spec.task,
            "agent": "bench-agent",
            "agent_name": "bench-agent",
            "model": MODELS[spec.protocol],
            "source": "benchflow",
            "rollout_dir": spec.name,
            "training_ready": why_not is None,
            "training_ready_reason": why_not,
        },
        "reward": parts.reward,
        "error": error if spec.incomplete else None,
        "timing": result["timing"],
        "is_completed": not spec.incomplete,
        "is_truncated": spec.incomplete,
        "stop_condition": why_not or "agent_completed",
        "metrics": {"n_tool_calls": result["n_tool_calls"], "n_prompts": 1, "reward": parts.reward},
        "tool_defs": [chat_tool(tool) for tool in parts.tools],
        "token_usage": {
            "input_tokens": n_in,
            "output_tokens": n_out,
            "final_input_tokens": n_in,
            "final_output_tokens": n_out,
            "total_tokens": n_in + n_out,
        },
        "score": parts.reward,
        "total_tool_calls": float(result["n_tool_calls"]),
    }
