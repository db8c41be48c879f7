"""Every exchange that a provider may bill is in the cost, or the cost is unknown and says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.pricing import Price, Rates
from pytest_benchflow.training.account import agent_cost, cost_record
from pytest_benchflow.training.row import build_row
from tests.unit.rollouts import Json, Talk, assistant, call, exchange, write_records

if TYPE_CHECKING:
    from pathlib import Path

PRICE = Price("option", ((0, Rates(10.0, 50.0)),)).as_json()
ONE = (100 * 10 + 10 * 50) / 1e6


def talk() -> Talk:
    """Return a run of two steps, each of them 100 tokens in and 10 out."""
    made = Talk()
    made.ask(assistant("", call("c1")))
    made.ask(assistant("", call("c2", "finish", message="Done.")))
    return made


def cost(path: Path, records: list[Json], price: Any = PRICE, **result: Any) -> Json:
    rundir = write_records(path, records)
    found = cost_record(build_row(rundir, result=result, config={}).records, result, {"price": price})
    assert found is not None
    return found


def test_side_calls_and_retries_are_paid_and_add_up(tmp_path: Path) -> None:
    records = talk().records
    title = exchange([{"role": "user", "content": "Give this conversation a title."}], assistant("Fix"), tools=None)
    again = exchange(records[0]["request"]["body"]["messages"], assistant("", call("c0")))
    failed = exchange(records[0]["request"]["body"]["messages"], None, status=503)
    found = cost(tmp_path, [title, failed, again, *records])
    assert found["usd"] == pytest.approx(4 * ONE)
    assert found["selected_usd"] == pytest.approx(3 * ONE)
    assert found["excluded_usd"] == pytest.approx(ONE)
    assert found["selected_usd"] + found["excluded_usd"] == pytest.approx(found["usd"])
    assert found["unpriced"] is None
    assert found["price_source"] == "option"


def no_answer(record: Json) -> None:
    record.update(response=None, error={"type": "closed", "message": "the endpoint was closed"})


def cut(record: Json) -> None:
    record["error"] = {"type": "incomplete", "message": "the stream ended early"}


def broken_off(record: Json) -> None:
    record["response"] = {"status_code": 502, "body": {"error": {"message": "broke off"}}}
    record.update(error={"type": "provider", "message": "broke off"}, metadata={"upstream_status": 200})


def refused(status: int, **metadata: Any) -> Any:
    """Return a fault by which an exchange ends with a status of our own."""

    def fault(record: Json) -> None:
        record["response"] = {"status_code": status, "body": {"error": {"message": "refused"}}}
        record["metadata"] = metadata

    return fault


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (no_answer, "exchange 1: it has no answer"),
        (cut, "exchange 1: its answer is not whole"),
        (broken_off, "exchange 1: its answer broke off"),
        (refused(504, upstream_timeout=2.0), "exchange 1: its answer did not come in time"),
        (refused(502, upstream={"status": 200}), "exchange 1: its answer could not be translated"),
        (refused(502, upstream_unanswered=True), "exchange 1: it was sent, and no answer came"),
        (lambda record: record["response"]["body"].pop("usage"), "exchange 1: the provider tells no usage"),
        (
            lambda record: record["response"]["body"]["usage"].pop("prompt_tokens"),
            "exchange 1: the provider tells no input",
        ),
        (
            lambda record: record["response"]["body"]["usage"].update(cached_tokens=5),
            "exchange 1: 5 tokens are priced as",
        ),
    ],
    ids=[
        "no-answer",
        "cut",
        "broken-off",
        "too-late",
        "untranslatable",
        "unanswered",
        "no-usage",
        "half-a-usage",
        "cache-without-a-price",
    ],
)
def test_a_bill_that_is_not_known_is_null_beside_what_is(tmp_path: Path, fault: Any, says: str) -> None:
    records = talk().records
    fault(records[1])
    found = cost(tmp_path, records)
    assert found["unpriced"].startswith(says)
    assert (found["usd"], found["selected_usd"], found["excluded_usd"]) == (None, None, None)
    assert found["known_usd"] == found["dearest_usd"] == pytest.approx(ONE)
    assert found["n_unpriced"] == 1


def test_what_was_never_sent_on_costs_nothing(tmp_path: Path) -> None:
    unwanted = exchange([{"role": "user", "content": "x"}], None, status=401)
    left = {"request": {"path": "/v1/chat/completions", "body": None}, "response": None}
    left["error"] = {"type": "client_gone", "message": "the client left before its request was whole"}
    unreachable = exchange([{"role": "user", "content": "x"}], None, status=502)
    assert cost(tmp_path, [unwanted, left, unreachable, *talk().records])["usd"] == pytest.approx(2 * ONE)


def test_a_torn_line_and_a_lost_exchange_make_the_cost_unknown(tmp_path: Path) -> None:
    lost = cost(tmp_path / "lost", talk().records, proxy={"received": 3, "recorded": 2})
    assert (lost["usd"], lost["unpriced"], lost["n_unpriced"]) == (None, "not recorded: 1 of 3 requests", 1)
    rundir = write_records(tmp_path / "torn", talk().records)
    rundir.llm.write_text(rundir.llm.read_text() + '{"request": {"pa')
    torn = cost_record(build_row(rundir, result={}, config={}).records, {}, {"price": PRICE})
    assert torn is not None
    assert (torn["usd"], torn["unpriced"]) == (None, "exchange 2: its line is no record")


def test_without_a_price_nothing_is_known_but_what_others_say(tmp_path: Path) -> None:
    records = talk().records
    for record in records:
        record["response"]["body"]["usage"]["cost"] = 0.25
    found = cost(
        tmp_path, records, {"source": None, "unpriced": "no table"}, agent_result={"reported": [{"cost": 0.5}]}
    )
    assert found == {
        **dict.fromkeys(
            ("usd", "selected_usd", "excluded_usd", "known_usd", "dearest_usd", "n_unpriced", "price_source")
        ),
        "unpriced": "no table",
        "provider_usd": 0.5,
        "agent_usd": 0.5,
    }
    del records[0]["response"]["body"]["usage"]["cost"]
    assert cost(tmp_path, records)["provider_usd"] is None


def test_a_rollout_whose_model_is_not_paid_has_no_cost(tmp_path: Path) -> None:
    rundir = write_records(tmp_path, talk().records)
    assert cost_record(build_row(rundir, result={}, config={}).records, {}, {"price": None}) is None


@pytest.mark.parametrize(
    ("reported", "usd"),
    [
        ([{"cost": 0.25}, {"cost": {"amount": 0.5, "currency": "USD"}}], 0.75),
        ([{"cost": {"amount": 0.5, "currency": "EUR"}}], None),
        ([{"cost": 0.0, "input_tokens": 5}], None),
        ([{"cost": 0.25}, {"input_tokens": 5}], None),
        ([], None),
    ],
    ids=["two-forms", "other-currency", "zero", "not-of-each-run", "nothing"],
)
def test_what_an_agent_says_it_spent(reported: list[Json], usd: float | None) -> None:
    assert agent_cost(reported) == (None if usd is None else pytest.approx(usd))
