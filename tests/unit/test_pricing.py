"""What tokens cost: the user's prices, LiteLLM's map, tiers and caches, and all that is not known."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.dialects.chat import dialect as chat
from pytest_benchflow.dialects.generatecontent import dialect as generate
from pytest_benchflow.dialects.messages import dialect as messages
from pytest_benchflow.dialects.responses import dialect as responses
from pytest_benchflow.errors import UnpricedError, UsageError
from pytest_benchflow.pricing import _MAP, Price, Prices, Rates, _litellm_map, read_prices, reported_cost
from pytest_benchflow.records.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_benchflow.contracts import Dialect

FLAT = Price("invented", ((0, Rates(10.0, 50.0, 1.0, 12.0, 20.0)),), of_map=True)
TIERED = Price("invented", ((0, Rates(10.0, 50.0, 1.0)), (200_000, Rates(20.0, 75.0))))
# Invented prices, in the shape of the map's entries.
MAP: dict[str, Any] = {
    "swift-1": {
        "litellm_provider": "openai",
        "input_cost_per_token": 2e-06,
        "output_cost_per_token": 8e-06,
        "cache_read_input_token_cost": 5e-07,
        "input_cost_per_token_above_200k_tokens": 4e-06,
        "output_cost_per_token_above_200k_tokens": 1.2e-05,
        "input_cost_per_token_priority": 9e-06,
    },
    "zai/plain-1": {"litellm_provider": "zai", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    "gratis-1": {"litellm_provider": "openai", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "swift-search-1": {"litellm_provider": "openai", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    "half-1": {"litellm_provider": "openai", "input_cost_per_token": 1e-06},
    "thinker-1": {
        "litellm_provider": "openai",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
        "output_cost_per_reasoning_token": 3e-06,
    },
    "vertex-1": {
        "litellm_provider": "vertex_ai-language-models",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
    },
    "dashscope/steps": {
        "litellm_provider": "dashscope",
        "tiered_pricing": [
            {"range": [32000.0, 1e6], "input_cost_per_token": 3e-06, "output_cost_per_token": 6e-06},
            {"range": [0, 32000.0], "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
        ],
    },
}


@pytest.fixture
def litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a LiteLLM that is no more than its map: importing it would fail."""
    (tmp_path / "litellm").mkdir()
    (tmp_path / "litellm" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "litellm" / _MAP).write_text(json.dumps(MAP))
    (tmp_path / "litellm-9.8.7.dist-info").mkdir()
    (tmp_path / "litellm-9.8.7.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: litellm\nVersion: 9.8.7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for provider in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{provider}_BASE_URL", raising=False)
    _litellm_map.cache_clear()
    yield tmp_path
    _litellm_map.cache_clear()


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (
            chat,
            {
                "usage": {
                    "prompt_tokens": 1000,
                    "completion_tokens": 100,
                    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
                }
            },
        ),
        (
            messages,
            {
                "usage": {
                    "input_tokens": 300,
                    "output_tokens": 100,
                    "cache_read_input_tokens": 600,
                    "cache_creation_input_tokens": 100,
                }
            },
        ),
        (
            responses,
            {
                "usage": {
                    "input_tokens": 1000,
                    "output_tokens": 100,
                    "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
                }
            },
        ),
    ],
    ids=["chat", "messages", "responses"],
)
def test_the_same_tokens_cost_the_same_in_each_convention(dialect: Dialect, answer: dict[str, Any]) -> None:
    usage = dialect.usage(answer)
    assert usage is not None
    assert FLAT.cost(usage, answer) == pytest.approx((300 * 10 + 600 * 1 + 100 * 12 + 100 * 50) / 1e6)


def test_thoughts_are_paid_as_output_and_cached_prompts_as_reads() -> None:
    counts = {
        "promptTokenCount": 500,
        "cachedContentTokenCount": 200,
        "candidatesTokenCount": 10,
        "thoughtsTokenCount": 30,
    }
    usage = generate.usage({"usageMetadata": counts})
    assert usage is not None
    assert FLAT.cost(usage, {}) == pytest.approx((300 * 10 + 200 * 1 + 40 * 50) / 1e6)


@pytest.mark.parametrize(
    ("tokens", "usd"), [(200_000, 2.0), (200_001, 4.00002)], ids=["up-to-the-threshold", "one-token-above"]
)
def test_a_long_request_costs_its_tier_as_a_whole(tokens: int, usd: float) -> None:
    assert TIERED.cost(Usage(tokens, 0), {}) == pytest.approx(usd)


def test_what_is_kept_for_an_hour_costs_its_own_price() -> None:
    answer = {"usage": {"cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40}}}
    assert FLAT.cost(Usage(100, 0, 0, 100), answer) == pytest.approx((60 * 12 + 40 * 20) / 1e6)
    # The user's own price of a write is that of every write.
    own = Price("option", ((0, Rates(10.0, 50.0, 1.0, 12.0)),))
    assert own.cost(Usage(100, 0, 0, 100), answer) == pytest.approx(100 * 12 / 1e6)


@pytest.mark.parametrize(
    ("usage", "answer", "says"),
    [
        (Usage(None, 5), {}, "tells no input or no output tokens"),
        (Usage(total_tokens=7), {}, "tells no input or no output tokens"),
        (Usage(10, 5, 8, 8), {}, "8 cache reads and 8 cache writes are more than its 10 input tokens"),
        (Usage(200_001, 5, 8), {}, "8 tokens are priced as cache_read, for which invented has no price"),
        (Usage(10, 5, 0, 2), {}, "2 tokens are priced as cache_write"),
        (
            Usage(10, 5),
            {"usage": {"server_tool_use": {"web_search_requests": 2}}},
            "web_search_requests, which is billed",
        ),
        (Usage(10, 5), {"output": [{"type": "web_search_call"}]}, "the provider ran web_search_call"),
        (
            Usage(10, 5),
            {"candidates": [{"groundingMetadata": {"webSearchQueries": ["x"]}}]},
            "the provider ran grounding",
        ),
        (Usage(10, 5), {"usage": {"prompt_tokens_details": {"audio_tokens": 3}}}, "audio tokens have another price"),
    ],
    ids=[
        *("no-input", "total-only", "more-cached-than-asked", "tier-without-cache-price", "no-write-price"),
        *("web-search", "search-item", "grounding", "audio"),
    ],
)
def test_what_a_price_does_not_tell_is_unknown_and_never_0(usage: Usage, answer: dict[str, Any], says: str) -> None:
    with pytest.raises(UnpricedError, match=says):
        TIERED.cost(usage, answer)


def test_another_service_tier_is_not_the_maps_price(litellm: Path) -> None:
    price, answer = Prices().of("openai/swift-1"), {"service_tier": "priority"}
    with pytest.raises(UnpricedError, match="the service tier 'priority' has another price"):
        price.cost(Usage(10, 5), answer)
    assert price.cost(Usage(10, 5), {"service_tier": "default"}) > 0
    assert TIERED.cost(Usage(10, 5), answer) > 0


def test_the_map_is_read_without_importing_litellm(litellm: Path) -> None:
    price = Prices().of("openai/swift-1")
    assert price.source == f"litellm 9.8.7 {_MAP}"
    assert price.tiers == ((0, Rates(2.0, 8.0, 0.5)), (200_000, Rates(4.0, 12.0)))
    assert "litellm" not in sys.modules
    assert Price.of_json(json.loads(json.dumps(price.as_json()))) == price


@pytest.mark.parametrize(
    ("model", "first"),
    [
        ("zai/plain-1", (0, Rates(1.0, 2.0))),
        ("vertex/vertex-1", (0, Rates(1.0, 2.0))),
        ("dashscope/steps", (0, Rates(1.0, 2.0))),
    ],
    ids=["with-its-provider", "a-part-of-a-provider", "listed-tiers-in-any-order"],
)
def test_an_entry_is_found_by_its_provider(litellm: Path, model: str, first: tuple[int, Rates]) -> None:
    assert Prices().of(model).tiers[0] == first


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("openai/unheard-of", "has no price for 'openai/unheard-of'; pass --benchflow-price=MODEL=in,out"),
        ("anthropic/swift-1", "has no price for 'anthropic/swift-1'"),
        ("openai/gratis-1", "a price of 0, or none, is unknown"),
        ("openai/half-1", "a price of 0, or none, is unknown"),
        ("openai/thinker-1", "its output_cost_per_reasoning_token is not applied"),
        ("openai/swift-search-1", "it searches with each answer"),
        ("azure/swift-1", "does not tell its model"),
        ("openai/swift-1@http://127.0.0.1:9/v1", "a server of its own"),
    ],
    ids=["unknown", "of-another-provider", "zero", "no-output", "reasoning-apart", "search", "azure", "own-server"],
)
def test_a_model_without_a_sure_price_has_none(litellm: Path, model: str, says: str) -> None:
    with pytest.raises(UnpricedError, match=says):
        Prices().of(model)


def test_a_base_url_that_leads_elsewhere_has_prices_of_its_own(litellm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1")
    with pytest.raises(UnpricedError, match=r"OPENAI_BASE_URL leads to 127\.0\.0\.1, whose prices are not known"):
        Prices().of("openai/swift-1")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.openai.com/v1")
    assert Prices().of("openai/swift-1").of_map


def test_a_map_that_cannot_be_read_is_none(litellm: Path) -> None:
    (litellm / "litellm" / _MAP).write_text("{")
    with pytest.raises(UnpricedError, match=r"litellm 9\.8\.7 .* cannot be read"):
        Prices().of("openai/swift-1")


def test_the_option_is_over_the_file_and_the_file_over_the_map(litellm: Path, tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        '[models."openai/swift-1"]\ninput = 3\noutput = 9\n'
        '[[models."openai/swift-1".tiers]]\nabove = 100000\ninput = 6\noutput = 18\n'
        '[models."zai/plain-1"]\ninput = 4\noutput = 5\n'
    )
    prices = read_prices(["zai/plain-1=7,8,0"], str(file))
    assert prices.of("zai/plain-1") == Price("option", ((0, Rates(7.0, 8.0, 0.0)),))
    assert prices.of("openai/swift-1").tiers == ((0, Rates(3.0, 9.0)), (100_000, Rates(6.0, 18.0)))
    assert prices.of("openai/swift-1").source.startswith("prices.toml sha256:")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[models", "cannot be read as a table of prices"),
        ("[model.x]\ninput = 1", "it takes a table for each model"),
        ("[models]\nx = 3", "models.'x' is 3; it takes input, output"),
        ("[models.x]\ninput = 1", "output is missing"),
        ("[models.x]\ninput = 1\noutput = 2\ncached = 3", "cached is no price"),
        ("[models.x]\ninput = 1\noutput = -2", "output is -2"),
        ("[models.x]\ninput = 1\noutput = nan", "output is nan"),
        ("[models.x]\ninput = 1\noutput = 2\n[[models.x.tiers]]\ninput = 1\noutput = 2", "each takes above"),
    ],
    ids=["no-toml", "other-table", "no-table", "missing", "unknown", "negative", "not-a-number", "tier-without-above"],
)
def test_a_file_that_is_no_table_of_prices_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_prices([], str(file))


@pytest.mark.parametrize(
    ("usage", "usd"),
    [
        ({"cost": 0.25}, 0.25),
        ({"cost": 0}, None),
        ({}, None),
        ({"cost": 0.01, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}, 0.21),
        ({"cost": 0.01, "is_byok": True}, None),
    ],
    ids=["cost", "zero", "nothing", "own-key", "own-key-untold"],
)
def test_what_a_provider_says_itself(usage: dict[str, Any], usd: float | None) -> None:
    assert reported_cost({"usage": usage}) == (None if usd is None else pytest.approx(usd))
