"""Add up what exchanges cost in tokens; what a provider did not say stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import UnpricedError
from pytest_benchflow.pricing import Price, reported_cost
from pytest_benchflow.records.values import integer, mapping, number, sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_benchflow.records.usage import Usage
    from pytest_benchflow.training.threads import Exchange


# Of a US dollar, in what records hold.
_DECIMALS = 10
_UNKNOWN = ("usd", "selected_usd", "excluded_usd", "known_usd", "dearest_usd", "n_unpriced")


def token_sums(exchanges: Sequence[Exchange]) -> dict[str, int]:
    """Return tokens billed, selected and excluded over all exchanges that report any; law 3 is about these."""
    sums = {"billed": 0, "selected": 0, "excluded": 0}
    for exchange in exchanges:
        tokens = exchange.tokens or 0
        sums["billed"] += tokens
        sums["selected" if exchange.selected else "excluded"] += tokens
    return sums


def usage_totals(exchanges: Sequence[Exchange]) -> dict[str, int | None]:
    """Return the token fields of result.json's agent_result; a field is null when any billed exchange hides it.

    `n_untold` counts the exchanges that may have been billed and of which nobody knows for how many tokens.
    """
    usages = [exchange.usage for exchange in exchanges if exchange.usage is not None]
    return {
        "n_input_tokens": _sum(usage.input_tokens for usage in usages),
        "n_output_tokens": _sum(usage.output_tokens for usage in usages),
        "n_cache_read_tokens": _sum_known(usages, "cache_read_tokens"),
        "n_cache_creation_tokens": _sum_known(usages, "cache_creation_tokens"),
        "total_tokens": _sum(usage.billed for usage in usages),
        "n_untold": sum(
            exchange.untold is not None or (exchange.usage is not None and exchange.tokens is None)
            for exchange in exchanges
        ),
    }


def costs(exchanges: Sequence[Exchange], price: Price) -> dict[str, Any]:
    """Return what all exchanges cost in US dollars, side calls and retries too: `usd` is selected plus excluded.

    `usd` is null, with the reason in `unpriced`, when any of it is unknown; `known_usd` is the part that is known,
    `dearest_usd` the most that one exchange is known to have cost, `n_unpriced` how many cost nobody knows what.
    """
    sums = {True: 0.0, False: 0.0}
    dearest = 0.0
    unpriced: list[str] = []
    for exchange in exchanges:
        if exchange.untold:
            unpriced.append(f"exchange {exchange.index}: {exchange.untold}")
        elif exchange.usage is not None:
            try:
                cost = price.cost(exchange.usage, exchange.response)
            except UnpricedError as error:
                unpriced.append(f"exchange {exchange.index}: {error}")
            else:
                sums[exchange.selected] += cost
                dearest = max(dearest, cost)
    selected, excluded = (round(sums[which], _DECIMALS) for which in (True, False))
    known = round(selected + excluded, _DECIMALS)
    more = f", and {len(unpriced) - 1} more" if len(unpriced) > 1 else ""
    return {
        "usd": None if unpriced else known,
        "selected_usd": None if unpriced else selected,
        "excluded_usd": None if unpriced else excluded,
        "known_usd": known,
        "dearest_usd": round(dearest, _DECIMALS) or None,
        "n_unpriced": len(unpriced),
        "unpriced": unpriced[0] + more if unpriced else None,
    }


def cost_record(
    exchanges: Sequence[Exchange], result: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return result.json's `cost`, by the price that config.json holds; None where no model is paid.

    Beside our own sum it has what the provider and what the agent say.
    """
    if config.get("price") is None:
        return None
    source = None
    try:
        price = Price.of_json(config["price"])
        source, told = price.source, costs(exchanges, price)
    except UnpricedError as error:
        told = {**dict.fromkeys(_UNKNOWN), "unpriced": str(error)}
    proxy = mapping(result.get("proxy"))
    lost = (integer(proxy.get("received")) or 0) - (integer(proxy.get("recorded")) or 0)
    if lost and told["n_unpriced"] is not None:
        told |= {
            **dict.fromkeys(("usd", "selected_usd", "excluded_usd")),
            "n_unpriced": told["n_unpriced"] + lost,
            "unpriced": told["unpriced"] or f"not recorded: {lost} of {proxy['received']} requests",
        }
    reported = sequence(mapping(result.get("agent_result")).get("reported"))
    return {**told, "price_source": source, "provider_usd": provider_cost(exchanges), "agent_usd": agent_cost(reported)}


def provider_cost(exchanges: Sequence[Exchange]) -> float | None:
    """Return the sum of what answers themselves say they cost; None unless each that was billed says it."""
    billed = [exchange for exchange in exchanges if exchange.usage is not None or exchange.untold]
    said = [None if exchange.untold else reported_cost(exchange.response) for exchange in billed]
    known = [value for value in said if value is not None]
    return round(sum(known), _DECIMALS) if known and len(known) == len(said) else None


def agent_cost(reported: Sequence[Any]) -> float | None:
    """Return the US dollars that an agent says it has spent, over its runs; None unless it tells them of each.

    Agents that know no price say 0: that is no report.
    """
    said = []
    for usage in reported:
        cost = mapping(usage).get("cost")
        if isinstance(cost, dict):
            cost = cost.get("amount") if cost.get("currency") == "USD" else None
        said.append(number(cost) or None)
    known = [value for value in said if value is not None]
    return round(sum(known), _DECIMALS) if known and len(known) == len(said) else None


def summary(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """Return result.json's `exchanges` block."""
    completed = [exchange for exchange in exchanges if exchange.outcome == "completed"]
    excluded: dict[str, int] = {}
    for exchange in exchanges:
        if not exchange.selected:
            excluded[exchange.reason or "unknown"] = excluded.get(exchange.reason or "unknown", 0) + 1
    sums = token_sums(exchanges)
    return {
        "completed": len(completed),
        "selected": sum(exchange.selected for exchange in exchanges),
        "excluded_by_reason": excluded,
        "truncated": sum(exchange.outcome == "truncated" for exchange in exchanges),
        "with_usage": sum(exchange.tokens is not None for exchange in completed),
        "billed_tokens": sums["billed"],
        "selected_tokens": sums["selected"],
        "excluded_tokens": sums["excluded"],
    }


def policy_efforts(
    exchanges: Sequence[Exchange], records: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, str | None, str | None]]:
    """Yield (index, effort in the request, effort in the answer) of each of the policy's exchanges.

    `records` are the lines of llm_trajectory.jsonl. Two efforts in one body that differ are "high|max"; None: no word.
    """
    for exchange in exchanges:
        if exchange.role == "policy" and exchange.dialect is not None:
            record = records[exchange.index]
            request, response = (mapping(mapping(record.get(key)).get("body")) for key in ("request", "response"))
            yield exchange.index, exchange.dialect.effort(request), exchange.dialect.effort(response)


def effort_counts(
    asked: str | None, exchanges: Sequence[Exchange], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Count the policy's requests, those with the effort asked for, and the answers that say it back.

    Returns {asked, requests, requests_matching, responses_echoing}; the last two are null where no effort was asked.
    """
    if not asked:
        requests = sum(exchange.role == "policy" and exchange.dialect is not None for exchange in exchanges)
        return {"asked": asked, "requests": requests, "requests_matching": None, "responses_echoing": None}
    found = list(policy_efforts(exchanges, records))
    return {
        "asked": asked,
        "requests": len(found),
        "requests_matching": sum(same_effort(sent, asked) for _, sent, _ in found),
        "responses_echoing": sum(same_effort(said, asked) for _, _, said in found),
    }


def same_effort(found: str | None, asked: str | None) -> bool:
    """Tell whether two efforts are the same word; no word is none."""
    return found is not None and asked is not None and found.lower() == asked.strip().lower()


def _sum(values: Iterable[int | None]) -> int | None:
    total, known = 0, False
    for value in values:
        if value is None:
            return None
        total, known = total + value, True
    return total if known else None


def _sum_known(usages: Sequence[Usage], field: str) -> int | None:
    """Add up a field that providers leave out when it is nil: null only when no answer has it."""
    values = [getattr(usage, field) for usage in usages]
    known = [value for value in values if value is not None]
    return sum(known) if known else None
