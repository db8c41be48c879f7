"""The runs that a conformance check is made of: what the scripted model answers, and what the client side does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.rollout.probing import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchflow.proxy.probe import Asked
    from pytest_benchflow.rollout.probing import Signs

    Answer = Callable[[Signs, Asked], ScriptTurn]

# Above what readers of lines take by default (64 KiB), and below what one argument of a command may hold (128 KiB).
LONG = 96 * 1024
# Of a stream, in bytes: some of the text is said by then, and not all.
_CUT = 1500
_FOREVER = "31536000"


def long_text(token: str) -> str:
    """Return one line of numbered words, longer than `LONG`, whose both ends name the token."""
    words = " ".join(f"word{number:05d}" for number in range(LONG // 10))
    return f"first-{token} {words} last-{token}"


def _always(turn: Callable[[Signs], ScriptTurn]) -> Answer:
    """Say the same to every request."""
    return lambda signs, _: turn(signs)


def _running(*commands: Callable[[Signs], str]) -> Answer:
    """Call the tool that runs commands, once; then, and where there is no such tool, say the last word.

    An agent may ask for titles and the like beside its work, without tools.
    """

    def answer(signs: Signs, asked: Asked) -> ScriptTurn:
        called = any(signs.token in call.arguments for turn in asked.turns for call in turn.tool_calls)
        if asked.tool is None or called or asked.results():
            return ScriptTurn(text=signs.text)
        return ScriptTurn(calls=tuple(asked.tool.call(command(signs)) for command in commands))

    return answer


def _working_for_ever(signs: Signs, asked: Asked) -> ScriptTurn:
    if asked.tool is None:
        return ScriptTurn(hang=True)
    return _running(lambda signs: f"{signs.command(1)}; sleep {_FOREVER}")(signs, asked)


def _failing_once(signs: Signs, asked: Asked) -> ScriptTurn:
    if asked.first:
        return ScriptTurn(status=500, error="the scripted model fails once")
    return ScriptTurn(text=signs.text)


def _cut_once(signs: Signs, asked: Asked) -> ScriptTurn:
    text = "This is said at length. " * 30 + signs.text
    return ScriptTurn(text=text, cut=_CUT if asked.streamed and asked.first else None)


_text = _always(lambda signs: ScriptTurn(text=signs.text))
_long_text = _always(lambda signs: ScriptTurn(text=long_text(signs.token)))
_error = _always(lambda _: ScriptTurn(status=500, error="the scripted model fails always"))
_silence = _always(lambda _: ScriptTurn(hang=True))
_one_command = _running(lambda signs: signs.command(1))
_two_commands = _running(lambda signs: signs.command(1), lambda signs: signs.command(2))
_long_line = _running(lambda signs: f"head -c {LONG} /dev/zero | tr '\\0' x; echo; {signs.command(1)}")
# In a shell of its own: some agents keep one shell for all commands, which must not end.
_failing = _running(lambda signs: f"({signs.command(1)}; exit 3)")

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("text", _text),
        Scenario("tool_call", _one_command),
        Scenario("parallel_calls", _two_commands),
        Scenario("long_prompt", _text, prompt=long_text),
        Scenario("long_answer", _long_text),
        Scenario("long_output", _long_line),
        Scenario("tool_error", _failing),
        Scenario("permission_refused", _one_command, allow=False),
        Scenario("model_error_once", _failing_once),
        Scenario("model_error", _error),
        Scenario("stream_cut", _cut_once),
        Scenario("hung_model", _silence, cancels=True),
        Scenario("cancel", _working_for_ever, cancels=True),
        Scenario("crash", _working_for_ever, crashes=True),
    )
}
