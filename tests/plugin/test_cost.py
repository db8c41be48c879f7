"""What rollouts cost, as a user sees it: prices, unknown ones, sources that differ, and a limit to what is spent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.modelhost import Provider, Reply, providing
from tests.plugin.agentsdir import INSTALL, declare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.server import BaseHTTPRequestHandler

    from pytest import RunResult

    from tests.plugin.bench import Bench

USAGE = {
    "prompt_tokens": 1_000,
    "completion_tokens": 100,
    "total_tokens": 1_100,
    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
}
# 300 fresh at 10, 100 out at 50, 600 read at 1, 100 written at 12, per million.
CALL_USD = 0.0098
RATES = "10,50,1,12"


class Seller(Provider):
    """Fails once, then answers with a command, then with the end, or in words where no tools are; `usage` in each.

    `silent` answers, from the first on, have none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.usage: dict[str, Any] | None = dict(USAGE)
        self.silent = 0

    def reply(self, body: dict[str, Any], request: BaseHTTPRequestHandler) -> Reply:
        del request
        if self.asked == 1:
            return Reply({"error": {"message": "busy"}}, 503)
        tools = any(message["role"] == "tool" for message in body["messages"])
        call = ("finish", {"message": "Done."}) if tools else ("shell", {"command": "echo done > /app/out.txt"})
        usage = None if self.silent else self.usage
        self.silent -= bool(self.silent)
        return Reply(self.completion(body, call, text="" if "tools" in body else "done", usage=usage))


@pytest.fixture
def provider() -> Iterator[Seller]:
    with providing(Seller()) as made:
        yield made


@dataclass(frozen=True)
class Shop:
    """Tasks, and a model that is paid for."""

    bench: Bench
    provider: Seller

    def run(self, *arguments: str, price: str | None = RATES, tasks: int = 1, all_items: bool = False) -> RunResult:
        """Run the rollouts of so many tasks, or all items, at a price of the model's; None: without one."""
        for number in range(tasks):
            self.bench.task(f"task-{number}")
        options = [f"--benchflow-model={self.provider.model}", *(() if all_items else ("-m", "rollout"))]
        options += [] if price is None else [f"--benchflow-price={self.provider.model}={price}"]
        return self.bench.run("tasks", *options, *arguments)

    @property
    def result(self) -> dict[str, Any]:
        """Return the result of the only rollout."""
        (path,) = self.bench.rollouts()
        return self.bench.result(path)

    @property
    def summary(self) -> dict[str, Any]:
        (path,) = (self.bench.path / "jobs").glob("*/summary.json")
        value: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return value


@pytest.fixture
def shop(bench: Bench, provider: Seller) -> Shop:
    return Shop(bench, provider)


def test_a_rollout_costs_its_usage_at_the_price_given(shop: Shop) -> None:
    done = shop.run(all_items=True)
    assert done.ret == 0, done.outlines
    result = shop.result
    # The try that failed is billed nothing; it is one of the three exchanges.
    assert shop.provider.asked == result["proxy"]["received"] == 3
    assert result["agent_result"]["cost_usd"] == pytest.approx(2 * CALL_USD)
    assert result["agent_result"]["price_source"] == "option"
    assert result["cost"]["selected_usd"] + result["cost"]["excluded_usd"] == pytest.approx(2 * CALL_USD)
    (path,) = shop.bench.rollouts()
    assert shop.bench.config(path)["price"]["usd_per_million_tokens"][0]["cache_write"] == 12
    assert shop.summary["cost_usd"] == {"total": 0.0196, "priced_subtotal": 0.0196, "unpriced": 0}
    assert "cost: $0.0196" in done.outlines


def test_a_model_without_a_price_costs_null(shop: Shop) -> None:
    done = shop.run(price=None, tasks=2)
    assert done.ret == 0, done.outlines
    for path in shop.bench.rollouts():
        assert shop.bench.result(path)["agent_result"]["cost_usd"] is None
        assert "pass --benchflow-price=MODEL=" in shop.bench.result(path)["cost"]["unpriced"]
    assert shop.summary["cost_usd"] == {"total": None, "priced_subtotal": 0.0, "unpriced": 2}
    assert "cost: unknown, 2 of 2 rollouts unpriced" in done.outlines


def test_an_answer_without_usage_makes_the_cost_unknown(shop: Shop) -> None:
    shop.provider.usage = None
    done = shop.run("--benchflow-price=invented/scripted=1,2", price=None)
    assert shop.result["cost"]["unpriced"].startswith("exchange 1: the provider tells no usage")
    assert "cost: unknown, 1 of 1 rollouts unpriced" in done.outlines


def test_a_provider_that_says_another_cost_is_a_warning(shop: Shop) -> None:
    shop.provider.usage = {**USAGE, "cost": 2 * CALL_USD}
    done = shop.run(all_items=True)
    assert done.ret == 0, done.outlines
    text = " ".join(done.outlines)
    assert "costs differ by $0.019600, more than 2%: usage times price $0.019600, the provider says $0.039200" in text


@pytest.mark.parametrize(
    ("amount", "agrees"),
    [(CALL_USD, True), (0.00998, True), (0.05, False)],
    ids=["the-same", "within-the-tolerance", "another"],
)
def test_what_the_agent_says_it_spent_is_compared(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, amount: float, agrees: bool
) -> None:
    shop.provider.asked = 1  # this agent does not try twice
    told = {"sessionUpdate": "usage_update", "used": 1, "size": 9, "cost": {"amount": amount, "currency": "USD"}}
    end = '        result = {"stopReason": "end_turn"}'
    says = f'        send(method="session/update", params={{"sessionId": "s", "update": {told}}})\n{end}'
    declare(shop.bench.path / "agents", install_cmd=INSTALL.replace(end, says))
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", "agents")
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(shop.bench.path / "cache"))
    done = shop.run("--benchflow-agent=courier", "-k", "rollout or costs_agree", all_items=True)
    assert done.ret == 0, done.outlines
    cost = shop.result["cost"]
    assert (cost["usd"], cost["agent_usd"]) == (pytest.approx(CALL_USD), amount)
    assert ("the agent says $0.050000" in " ".join(done.outlines)) is not agrees
    assert ("costs differ by" in " ".join(done.outlines)) is not agrees


def test_a_file_of_prices_is_named_by_its_digest(shop: Shop) -> None:
    shop.bench.ini("benchflow_prices = money/prices.toml")
    rates = "input = 10\noutput = 50\ncache_read = 1\ncache_write = 12\n"
    shop.bench.write(shop.bench.path, {"money/prices.toml": f'[models."invented/scripted"]\n{rates}'})
    assert shop.run(price=None).ret == 0
    usage = shop.result["agent_result"]
    assert usage["cost_usd"] == pytest.approx(2 * CALL_USD)
    assert usage["price_source"].startswith("prices.toml sha256:")


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one-process", "two-workers"])
def test_what_may_be_spent_stops_new_rollouts(shop: Shop, workers: tuple[str, ...]) -> None:
    done = shop.run(f"--benchflow-max-cost={CALL_USD * 3}", *workers, tasks=6)
    assert done.ret == 1
    # Two of them reach the limit; with two workers another may be under way by then.
    ran = len(shop.bench.rollouts())
    assert ran in ((2, 3) if workers else (2,))
    counted = done.parseoutcomes()
    assert (counted["solved"], counted["skipped"]) == (ran, 6 - ran)
    text = " ".join(done.outlines)
    assert f"this run fails, for {6 - ran} of 6 rollouts did not run: not started: this session has spent $" in text
    told = shop.summary
    assert (told["coverage"]["healthy"], told["coverage"]["missing"]) == (ran, 6 - ran)
    assert all("--benchflow-max-cost" in each["reason"] for each in told["missing"])


def test_a_provider_that_tells_no_usage_stops_what_has_a_limit(shop: Shop) -> None:
    shop.provider.usage = None
    done = shop.run("--benchflow-max-cost=1000", tasks=3)
    assert done.ret == 1
    (only,) = shop.bench.rollouts()
    text = " ".join(done.outlines)
    assert f"--benchflow-max-cost cannot hold, for what {only.name} cost is not known: exchange 1:" in text
    assert "the provider tells no usage" in text


def test_an_exchange_of_unknown_cost_counts_as_the_dearest(shop: Shop) -> None:
    shop.provider.silent = 1
    # Of the first rollout one exchange is known and one is not: together they count as two.
    done = shop.run(f"--benchflow-max-cost={CALL_USD * 2}", tasks=3)
    assert done.ret == 1
    assert len(shop.bench.rollouts()) == 1
    text = " ".join(done.outlines)
    assert "has spent $0.0196 (1 of unknown cost counted as the dearest exchange of their rollout)" in text


def test_a_later_session_of_the_job_spends_its_own(shop: Shop) -> None:
    for tasks in (1, 0):
        assert shop.run("--benchflow-max-cost=0.001", "--benchflow-job-name=same", tasks=tasks).ret == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--benchflow-max-cost=1",),
            "--benchflow-max-cost cannot hold: no price is known for 'a/b@http://127.0.0.1:9/v1'",
        ),
        (("--benchflow-max-cost=0",), "--benchflow-max-cost is 0.0; it takes US dollars above 0"),
        (("--benchflow-price=a/b=0,0",), "input is 0.0; it takes dollars per million tokens, above 0"),
        (("--benchflow-price=a/b",), "--benchflow-price is 'a/b'; it takes MODEL=in,out"),
        (("--benchflow-prices=none.toml",), "none.toml: cannot be read as a table of prices"),
    ],
    ids=["limit-without-a-price", "limit-of-0", "price-of-0", "no-rates", "no-file"],
)
def test_what_cannot_be_priced_is_refused_at_the_start(bench: Bench, arguments: tuple[str, ...], says: str) -> None:
    bench.task()
    bench.refused("tasks", "--benchflow-model=a/b@http://127.0.0.1:9/v1", *arguments, says=says)
