"""Read the actions of agents that offer their model no tools: what it says is what they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson

from pytest_benchflow.records.values import sequence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchflow.training.threads import Exchange

# A block of shell commands (mini-swe-agent), or calls spelled out for models that cannot make any (OpenHands).
_BLOCK, _BLOCK_END = re.compile(r"^```(?:\w{0,20}bash\w{0,20}|sh|shell)[ \t]*\n", re.MULTILINE), "```"
_CALL, _CALL_END = re.compile(r"<function=(\w{1,80})>"), "</function>"
_PARAMETER, _PARAMETER_END = re.compile(r"<parameter=(\w{1,80})>"), "</parameter>"
_FENCE = re.compile(r"\A\s*```(?:json)?|```\s*\Z")


def spoken(exchanges: Sequence[Exchange]) -> Iterator[tuple[int, str, Any, str | None]]:
    """Yield (exchange, tool, arguments, what the next request says came of it) of what used answers tell to run.

    None where a request offers tools: then what a model says is only said.
    """
    policy = sorted((e for e in exchanges if e.role == "policy"), key=lambda exchange: exchange.order)
    if any(exchange.tools for exchange in policy):
        return
    for number, exchange in enumerate(policy):
        if not exchange.selected or exchange.answer is None:
            continue
        following = policy[number + 1].turns if number + 1 < len(policy) else []
        place = len(exchange.turns) + 1
        output = following[place].text if place < len(following) else None
        for tool, arguments in _told(exchange.answer.text):
            yield exchange.index, tool, arguments, output


def _told(text: str) -> Iterator[tuple[str, Any]]:
    for call, body in _enclosed(text, _CALL, _CALL_END):
        given = _enclosed(body, _PARAMETER, _PARAMETER_END)
        yield call[1], {parameter[1]: value.strip("\n") for parameter, value in given}
    for _, script in _enclosed(text, _BLOCK, _BLOCK_END):
        yield "bash", {"command": script}
    if '"commands"' in text:
        # Commands for a terminal, as one JSON object (Terminus).
        try:
            value = orjson.loads(_FENCE.sub("", text))
        except orjson.JSONDecodeError:
            return
        commands = sequence(value.get("commands")) if isinstance(value, dict) else []
        yield from (("terminal", command) for command in commands if isinstance(command, dict))


def _enclosed(text: str, opening: re.Pattern[str], closing: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield each opening with the text between it and the closing that follows."""
    place = 0
    while (begin := opening.search(text, place)) and (end := text.find(closing, begin.end())) >= 0:
        yield begin, text[begin.end() : end]
        place = end + len(closing)
