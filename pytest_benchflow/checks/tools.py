"""The tools in the row are those that the model had when it gave the answers in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.checks._check import check
from pytest_benchflow.checks._evidence import is_ours, rebuilt, the_row
from pytest_benchflow.records.values import mapping, sequence
from pytest_benchflow.training.tree import tool_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_benchflow.records.rollout import Rollout


@check(category="training", needs=("llm", "row", "result"))
def check_tools_are_the_union(rollout: Rollout) -> None:
    """Law 6: the row's tool_defs are the tools of the policy's selected exchanges, and a step's are its exchange's."""
    row = the_row(rollout)
    stored = _tools(row)
    offered = rebuilt(rollout).row["tool_defs"]
    names, expected = _names(stored), _names(offered)
    lost, odd = sorted(expected - names), sorted(names - expected)
    if not is_ours(rollout):
        # Other tools may give the tools of side calls to the row too; what no request offered is nobody's.
        odd = sorted(names.difference(*(exchange.offer.names for exchange in rebuilt(rollout).records)))
    assert not lost, f"results.jsonl: tool_defs lack {', '.join(lost)}, which the policy's requests offered"
    assert not odd, f"results.jsonl: tool_defs have {', '.join(odd)}, which no request of the policy offered"
    assert not is_ours(rollout) or stored == offered, "results.jsonl: tool_defs are not what the requests offered"
    own = stored if is_ours(rollout) else None
    compared: dict[tuple[int, int], str | None] = {}
    for number, step in enumerate(sequence(row.get("trajectory"))):
        said = _of_step(rollout, mapping(step), own, compared)
        assert said is None, f"results.jsonl: trajectory[{number}] has the tools {said}"


@check(severity="warning", category="training", needs=("llm",))
def check_tools_keep_their_schema(rollout: Rollout) -> None:
    """Law 6: no tool of the policy came with two different schemas under one name."""
    twice = mapping(rebuilt(rollout).row.get("info")).get("tool_conflicts")
    assert not twice, f"tools with several schemas under one name: {', '.join(map(str, sequence(twice)))}"


def _of_step(
    rollout: Rollout, step: dict[str, Any], default: list[Any] | None, compared: dict[tuple[int, int], str | None]
) -> str | None:
    """Compare a step's tools with those of its exchange, equal lists once; return how they differ, None if they do not.

    A step that has no list of its own has the row's, in a row of ours; other tools' steps then say nothing.
    """
    tools = _tools(step) if "tool_defs" in step or "tools" in step else default
    index = mapping(step.get("extras")).get("exchange_index")
    if tools is None or not isinstance(index, int):
        return None
    records = rebuilt(rollout).records
    if not 0 <= index < len(records):
        return None
    offered = records[index].tools
    key = id(tools), id(offered)
    if key not in compared:
        own, expected = (", ".join(sorted(_names(each))) or "none" for each in (tools, offered))
        different = own != expected or (is_ours(rollout) and tools != offered)
        compared[key] = f"{own}; exchange {index} offered {expected}" if different else None
    return compared[key]


def _tools(holder: dict[str, Any]) -> list[Any]:
    """Return the tools of a row or a step, which may be JSON text. Raises: AssertionError."""
    tools = holder.get("tool_defs", holder.get("tools"))
    if isinstance(tools, str):
        try:
            tools = orjson.loads(tools)
        except orjson.JSONDecodeError as error:
            raise AssertionError(f"results.jsonl: tool_defs are not JSON ({error})") from None
    return sequence(tools)


def _names(tools: Iterable[Any]) -> set[str]:
    return {tool_name(tool) for tool in tools if isinstance(tool, dict)}
