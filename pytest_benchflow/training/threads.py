"""Read exchanges and order them into threads: which history each one extends, and which are the policy's.

Histories repeat, so every turn is kept once and a history is a path in one tree of turns: a request extends another
when its path runs through the other's, and no two histories are ever compared turn by turn.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.contracts import Outcome
from pytest_benchflow.dialects._match import recorded_dialect
from pytest_benchflow.records.jsontext import loads
from pytest_benchflow.records.trajectory import Torn
from pytest_benchflow.records.values import integer, mapping
from pytest_benchflow.training.history import Histories, shared_ids
from pytest_benchflow.training.tree import NO_TOOLS, ROOT, Offer, TurnTree

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_benchflow.contracts import Dialect, Turn
    from pytest_benchflow.records.trajectory import Log
    from pytest_benchflow.records.usage import Usage

# A summary is asked for where it is needed: right before the history that it opens, tries and titles in between.
_JUST_BEFORE = 6
# Shorter texts may be the same by chance.
_SHORTEST_GIST = 16
_LONGEST_TASK = 100_000
_LAST_ELEMENT = re.compile(r"</(\w{1,40})>\s*\Z")


@dataclass(slots=True, eq=False)
class Exchange:
    """One line of llm_trajectory.jsonl and what is known of it; `index` is the 0-based line, `order` its start."""

    index: int
    order: tuple[float, int]
    outcome: str
    detail: str | None = None  # why the outcome is not completed, or what could not be mapped
    dialect: Dialect | None = None
    turns: list[Turn] = field(default_factory=list)
    answer: Turn | None = None
    offer: Offer = NO_TOOLS
    usage: Usage | None = None
    untold: str | None = None  # why what was billed for it is not known, beyond what `usage` says
    response: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    torn: bool = False  # the line is no record
    unsupported: tuple[str, ...] = ()
    merged: int = 0  # fragments of tool results joined, and copies dropped
    duplicates: int = 0
    node: int = ROOT  # of the request's history
    answered: int = ROOT  # of the history with the answer
    thread: int = -1
    role: str = "side"
    selected: bool = False
    reason: str | None = None

    @property
    def tokens(self) -> int | None:
        """Return the tokens billed for it, None when the provider did not say."""
        return self.usage.billed if self.usage is not None else None

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Return the tools the request offers, as chat-style definitions."""
        return self.offer.tools

    @property
    def request_key(self) -> tuple[int, tuple[str, ...]]:
        """Return what identical requests share: the history and the names of the tools on offer."""
        return self.node, self.offer.names

    def public(self) -> dict[str, Any]:
        """Return the exchange as a review shows it."""
        return {
            "index": self.index,
            "outcome": self.outcome,
            "role": self.role,
            "selected": self.selected,
            "reason": self.reason,
            "tokens": self.tokens,
        }


def analyse(log: Log) -> tuple[list[Exchange], TurnTree]:
    """Read the exchanges of a log; a line that is no record becomes an exchange of outcome error.

    The list is in line order; histories are resolved in the order the exchanges started.
    """
    exchanges: list[Exchange] = []
    records = []
    for index, record in enumerate(log):
        if isinstance(record, Torn):
            exchanges.append(
                Exchange(index, (index, index), "error", record.problem, torn=True, untold="its line is no record")
            )
            continue
        try:
            exchange = _classify(index, record)
        except Exception as error:
            # What no wire format can read must cost this row only, and never be lost.
            said = f"exchange {index} cannot be read: {_said(error)}"
            exchanges.append(Exchange(index, (index, index), "error", said, torn=True, untold="it cannot be read"))
            continue
        exchanges.append(exchange)
        records.append((exchange, record))
    tree = TurnTree()
    histories = Histories(tree)
    for exchange, record in sorted(records, key=lambda pair: pair[0].order):
        try:
            _resolve(exchange, mapping(record.get("request")), tree, histories)
        except Exception as error:
            exchange.unsupported = (f"the exchange cannot be read: {_said(error)}",)
    return exchanges, tree


def classify_line(index: int, line: bytes) -> Exchange:
    """Return the exchange of one line by itself: how it ended and what it used, not where it belongs."""
    try:
        return _classify(index, mapping(loads(line)))
    except Exception as error:
        return Exchange(index, (index, index), "error", _said(error), torn=True, untold="it cannot be read")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _classify(index: int, record: dict[str, Any]) -> Exchange:
    """Say how the exchange ended and what it cost."""
    request, response = mapping(record.get("request")), mapping(record.get("response"))
    metadata, error = mapping(record.get("metadata")), mapping(record.get("error")) or None
    started = metadata.get("started_seq")
    order = (float(started) if isinstance(started, int | float) else float(index), index)
    path = str(request.get("path") or "").partition("?")[0]
    dialect = recorded_dialect(path)
    status = integer(response.get("status_code"))
    body = response.get("body")
    if status is None and response.get("status_code") is not None:
        outcome = Outcome("error", f"status_code is {response['status_code']!r}, not a status")
    elif dialect is None:
        outcome = Outcome(
            "error" if error or status is None or status >= 400 else "partial", f"no dialect for {path!r}"
        )
    else:
        outcome = dialect.outcome(status, body, error)
    usage = dialect.usage(body) if dialect is not None and body is not None else None
    return Exchange(
        index,
        order,
        outcome.kind,
        outcome.reason,
        dialect,
        usage=usage,
        untold=_untold(record, status, usage),
        response=body,
        metadata=metadata,
    )


def _untold(record: dict[str, Any], status: int | None, usage: Usage | None) -> str | None:
    """Say why the bill for an exchange is not known; None where its usage is the bill, or there can be none."""
    if status is None:
        # A request without a body was never sent on.
        return None if mapping(record.get("request")).get("body") is None else "it has no answer"
    metadata = mapping(record.get("metadata"))
    if metadata.get("upstream_unanswered"):
        return "it was sent, and no answer came"
    upstream = integer(metadata.get("upstream_status"))
    if upstream is not None and upstream < 400 <= status:
        return "its answer broke off"
    if metadata.get("upstream_timeout") is not None:
        return "its answer did not come in time"
    translated = integer(mapping(metadata.get("upstream")).get("status"))
    if translated is not None and translated < 400 <= status:
        return "its answer could not be translated"
    if status >= 400:
        return None
    if mapping(record.get("error")):
        return "its answer is not whole"
    return None if usage is not None else "the provider tells no usage"


def _resolve(exchange: Exchange, request: dict[str, Any], tree: TurnTree, histories: Histories) -> None:
    """Turn the request's history and the answer into kept turns and a place in the tree."""
    body = request.get("body")
    dialect = exchange.dialect
    if dialect is None:
        return
    if not isinstance(body, dict):
        exchange.unsupported = ("a request without a JSON body",)
        return
    if not body.get(dialect.history) and not body.get("previous_response_id"):
        exchange.unsupported = (f"a request without {dialect.history}",)
        return
    history = histories.of(dialect, body)
    exchange.merged, exchange.duplicates = history.pairing.joined, history.pairing.dropped
    exchange.turns = history.turns.copy()
    exchange.node = exchange.answered = history.node
    exchange.offer = tree.offer(dialect, body)
    problems = history.problems
    if exchange.outcome == "completed":
        answer = dialect.response_turn(exchange.response)
        if answer is None:
            problems.append("an answer without a turn")
        else:
            problems += [*answer.unsupported, *shared_ids(answer)]
            exchange.answered, _ = tree.extend(exchange.node, answer)
            exchange.answer = answer
    histories.remember(body, exchange.response, history, exchange.answer)
    exchange.unsupported = tuple(problems)


@dataclass(slots=True)
class _Thread:
    """Exchanges that share a history, in start order."""

    number: int
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def first(self) -> Exchange:
        return self.exchanges[0]

    @property
    def system(self) -> tuple[str, ...]:
        return tuple(turn.text for turn in self.first.turns if turn.role == "system")[:1]

    @property
    def acts(self) -> bool:
        return any(exchange.tools or (exchange.answer and exchange.answer.tool_calls) for exchange in self.exchanges)

    @property
    def tool_names(self) -> set[str]:
        return {name for exchange in self.exchanges for name in exchange.offer.names}

    def carries(self, call_ids: set[str]) -> bool:
        return any(call.id in call_ids for turn in self.first.turns for call in turn.tool_calls)

    def call_ids(self) -> set[str]:
        return {call.id for e in self.exchanges if e.answer for call in e.answer.tool_calls}

    def prompt_match(self, prompt: str) -> int:
        """Return 2 when a user turn is the prompt, 1 when one holds it, else 0."""
        texts = [turn.text.strip() for turn in self.first.turns if turn.role == "user"]
        if prompt in texts:
            return 2
        return int(any(prompt in text for text in texts))


def assign_roles(exchanges: Sequence[Exchange], tree: TurnTree, prompts: Sequence[str]) -> None:
    """Set `thread` and `role` of each exchange; `prompts` are the texts the agent was started with, in order."""
    threads = _threads(exchanges, tree)
    if not threads:
        return
    told = [prompt.strip() for prompt in prompts if prompt.strip()]
    delegated = _delegated(threads)
    own = [thread for thread in threads if thread.number not in delegated] or threads
    policy = _policy_roots(own, told)
    _add_branches(own, policy, told)
    for thread in policy:
        _mark(thread)
    _set_summaries_aside(exchanges, policy, told)


def _threads(exchanges: Sequence[Exchange], tree: TurnTree) -> list[_Thread]:
    """Put each exchange into the thread whose history it extends, or into a new one."""
    threads: list[_Thread] = []
    owners: dict[int, _Thread] = {}
    for exchange in sorted(exchanges, key=lambda e: e.order):
        if exchange.node == ROOT or not any(turn.role != "system" for turn in exchange.turns):
            continue
        thread = next((owners[node] for node in tree.path(exchange.node) if node in owners), None)
        if thread is None:
            thread = _Thread(len(threads))
            threads.append(thread)
        thread.exchanges.append(exchange)
        exchange.thread = thread.number
        owners.setdefault(exchange.node, thread)
    return threads


def _delegated(threads: Sequence[_Thread]) -> set[int]:
    """Return the threads whose task a model has written: what opens them is an argument of another thread's call."""
    written: set[str] = set()
    delegated: set[int] = set()
    exchanges = [exchange for thread in threads for exchange in thread.exchanges] if len(threads) > 1 else []
    for exchange in sorted(exchanges, key=lambda e: e.order):
        thread = threads[exchange.thread]
        if exchange is thread.first:
            opening = itertools.takewhile(lambda turn: turn.role != "assistant", exchange.turns)
            if any(turn.role == "user" and turn.text.strip() in written for turn in opening):
                delegated.add(thread.number)
        for call in exchange.answer.tool_calls if exchange.answer else ():
            texts = (text.strip() for text in _texts(call.arguments))
            written.update(text for text in texts if _SHORTEST_GIST <= len(text) <= _LONGEST_TASK)
    return delegated


def _texts(arguments: str) -> Iterator[str]:
    """Yield the texts in a call's arguments."""
    try:
        stack = [loads(arguments)]
    except ValueError:
        return
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            stack.extend(value.values() if isinstance(value, dict) else value)


def _policy_roots(threads: Sequence[_Thread], prompts: Sequence[str]) -> list[_Thread]:
    """Return the thread that each prompt started; without a match the one that acts most."""
    roots: list[_Thread] = []
    for prompt in prompts:
        matches = [thread for thread in threads if thread.prompt_match(prompt)]
        # A title call carries the prompt too, but no tools, and more around it.
        best = max(
            matches,
            key=lambda t: (t.acts, t.prompt_match(prompt), len(t.exchanges), -len(t.first.turns), -t.number),
            default=None,
        )
        if best is not None and best not in roots and (best.acts or not any(root.acts for root in roots)):
            roots.append(best)
    if not roots:
        roots.append(max(threads, key=lambda t: (t.acts, len(t.exchanges), -t.number)))
    return roots


def _add_branches(threads: Sequence[_Thread], policy: list[_Thread], prompts: Sequence[str]) -> None:
    """Add what continues the policy under a changed history: compaction, a new system prompt."""
    root = policy[0]
    call_ids: set[str] = set().union(*(thread.call_ids() for thread in policy))
    for thread in threads:
        if thread in policy:
            continue
        same_system = thread.system == root.system
        same_tools = bool(thread.tool_names & root.tool_names) or (not thread.tool_names and not root.tool_names)
        if not same_tools or not (same_system or thread.carries(call_ids)):
            continue
        started = thread.first.order
        resumed = any(e.order > started for older in policy if older.first.order < started for e in older.exchanges)
        told = any(thread.prompt_match(prompt) for prompt in prompts)
        # A sub-agent works while the policy waits for it; after a compaction the old history never goes on.
        if told or thread.carries(call_ids) or not resumed:
            policy.append(thread)
            call_ids |= thread.call_ids()


def _mark(thread: _Thread) -> None:
    """Give the thread's exchanges the policy's role, save those that only ask about it (a title, a summary)."""
    offers = any(exchange.tools for exchange in thread.exchanges)
    for position, exchange in enumerate(thread.exchanges):
        aside = offers and not exchange.tools
        if aside and exchange.turns[-1].role == "tool":
            # The last answer of an agent that is made to stop offers no tools either, but nothing follows it.
            aside = any(later.node != exchange.node for later in thread.exchanges[position + 1 :])
        exchange.role = "side" if aside else "policy"


def _set_summaries_aside(exchanges: Sequence[Exchange], policy: Sequence[_Thread], prompts: Sequence[str]) -> None:
    """Give the side's role to requests for a summary: what came of one opens a later history as another's words."""
    ordered = sorted(exchanges, key=lambda exchange: exchange.order)
    places = {exchange.index: place for place, exchange in enumerate(ordered)}
    summaries: set[tuple[int, tuple[str, ...]]] = set()
    for thread in policy:
        opening = itertools.takewhile(lambda turn: turn.role != "assistant", thread.first.turns)
        texts = [turn.text for turn in opening if turn.role != "tool" and turn.text.strip() not in prompts]
        place = places[thread.first.index]
        for earlier in ordered[max(0, place - _JUST_BEFORE) : place]:
            asked = earlier.turns[-1] if earlier.role == "policy" and earlier.thread != thread.number else None
            if asked is None or asked.role != "user" or asked.text.strip() in prompts or earlier.answer is None:
                continue
            gists = [] if earlier.answer.tool_calls else _gists(earlier.answer.text)
            if any(gist in text for gist in gists for text in texts):
                summaries.add(earlier.request_key)
    for exchange in exchanges:
        if exchange.role == "policy" and exchange.request_key in summaries:
            exchange.role = "side"


def _gists(text: str) -> list[str]:
    """Return what a client may take over of an answer: all of it, or what stands in the element that ends it."""
    gists = [text.strip()]
    closing = _LAST_ELEMENT.search(text)
    if closing is not None:
        gists.append(text[: closing.start()].rpartition(f"<{closing[1]}>")[2].strip())
    return [gist for gist in gists if len(gist) >= _SHORTEST_GIST]
