"""Price models: what tokens cost by the user's own table, else by the map that LiteLLM ships; never a guess.

Prices are in US dollars per million tokens.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from pytest_benchflow.errors import UnpricedError, UsageError
from pytest_benchflow.records.values import integer, mapping, number, sequence
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_benchflow.records.usage import Usage

OPTION = "--benchflow-price"
_FORM = "MODEL=in,out[,cache_read,cache_write] in US dollars per million tokens"
_RATES = ("input", "output", "cache_read", "cache_write")
_MILLION = 1_000_000

_MAP = "model_prices_and_context_window_backup.json"
_MAP_RATES = {
    "input": "input_cost_per_token",
    "output": "output_cost_per_token",
    "cache_read": "cache_read_input_token_cost",
    "cache_write": "cache_creation_input_token_cost",
    "cache_write_1h": "cache_creation_input_token_cost_above_1hr",
}
_ABOVE = "input_cost_per_token_above_"
# What an entry may ask for beside its tokens, or by the hour; with one of these, tokens times price is not the bill.
_NOT_APPLIED = ("input_cost_per_request", "citation_cost_per_token", "off_peak_pricing", "input_dbu_cost_per_token")
# How the map calls providers that users name otherwise.
_MAP_PROVIDERS = {"vertex": "vertex_ai", "google": "gemini"}
_OWN_HOSTS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}
# Where a user's own URL may stand beside PROVIDER_BASE_URL.
_OTHER_BASES = {
    "google": "GEMINI_BASE_URL",
    "vertex": "VERTEXAI_API_BASE",
    "vertex_ai": "VERTEXAI_API_BASE",
    "bedrock": "AWS_ENDPOINT_URL_BEDROCK_RUNTIME",
}
_STANDARD_TIERS = ("auto", "default", "standard", "on_demand")
_PAID_TOOLS = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call")


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens; None: no price is known."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    cache_write_1h: float | None = None  # kept for an hour; None: as `cache_write` where the user says that price


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs; `tiers` are (more input tokens than, rates), the lowest first, which is of 0."""

    source: str
    tiers: tuple[tuple[int, Rates], ...]
    of_map: bool = False  # a public map's, which holds at a provider's standard terms only

    def as_json(self) -> dict[str, Any]:
        """Return the price as config.json holds it."""
        tiers = [
            {"above_input_tokens": above, **{name: getattr(rates, name) for name in Rates.__dataclass_fields__}}
            for above, rates in self.tiers
        ]
        return {"source": self.source, "of_map": self.of_map, "usd_per_million_tokens": tiers}

    @classmethod
    def of_json(cls, record: Any) -> Price:
        """Return the price that config.json holds. Raises: UnpricedError saying why there is none."""
        told = mapping(record)
        if "usd_per_million_tokens" not in told:
            raise UnpricedError(str(told.get("unpriced") or "no price was noted when the rollout began"))
        try:
            tiers = tuple(
                (int(tier["above_input_tokens"]), Rates(**{name: tier[name] for name in Rates.__dataclass_fields__}))
                for tier in [told["usd_per_million_tokens"][0], *told["usd_per_million_tokens"][1:]]
            )
            return cls(str(told["source"]), tiers, bool(told["of_map"]))
        except (KeyError, TypeError, ValueError):
            raise UnpricedError("config.json: its price is none that this version reads") from None

    def cost(self, usage: Usage, body: Any) -> float:
        """Return what the answer `body` cost in US dollars. Raises: UnpricedError saying what is unknown."""
        inputs, outputs = usage.input_tokens, usage.output_tokens
        if inputs is None or outputs is None:
            raise UnpricedError("the provider tells no input or no output tokens")
        read, written = usage.cache_read_tokens or 0, usage.cache_creation_tokens or 0
        fresh = inputs - read - written
        if fresh < 0:
            raise UnpricedError(
                f"{read} cache reads and {written} cache writes are more than its {inputs} input tokens"
            )
        if extra := _beside_tokens(body, self.of_map):
            raise UnpricedError(extra)
        rates = next(rates for above, rates in reversed(self.tiers) if inputs > above or above == 0)
        lasting = min(_hour_writes(body), written)
        parts = [fresh * rates.input, outputs * rates.output]
        parts += [_cached(read, rates.cache_read, "cache_read", self.source)]
        parts += [_cached(written - lasting, rates.cache_write, "cache_write", self.source)]
        hourly = rates.cache_write_1h if self.of_map else rates.cache_write
        parts += [_cached(lasting, hourly, "cache_write for an hour", self.source)]
        return sum(parts) / _MILLION


@dataclass(frozen=True, slots=True)
class Prices:
    """The user's own prices by model; what is not among them is looked up in LiteLLM's map."""

    own: Mapping[str, Price] = field(default_factory=dict)

    def of(self, model: str) -> Price:
        """Return the price of a model as the user names it. Raises: UnpricedError saying why there is none."""
        # A server's model may be priced by its name alone.
        for name in (model, model.partition("@http")[0]):
            if name in self.own:
                return self.own[name]
        return _map_price(model)

    def as_json(self, model: str) -> dict[str, Any]:
        """Return a model's price as config.json holds it, or why it has none."""
        try:
            return self.of(model).as_json()
        except UnpricedError as error:
            return {"source": None, "unpriced": str(error)}


def read_prices(options: Sequence[str], file: str | None) -> Prices:
    """Return the prices of options `MODEL=in,out[,cache_read,cache_write]` and, under them, of a TOML file.

    Raises: UsageError naming what came and what is accepted.
    """
    own = dict(_file_prices(Path(file))) if file else {}
    for option in options:
        model, _, rates = option.rpartition("=")
        values = [_amount(text) for text in rates.split(",")]
        if not model or not 2 <= len(values) <= len(_RATES) or None in values:
            raise UsageError(f"{OPTION} is {option!r}; it takes {_FORM}")
        own[model] = Price("option", ((0, _own_rates(dict(zip(_RATES, values, strict=False)), f"{OPTION}={option}")),))
    return Prices(own)


def reported_cost(body: Any) -> float | None:
    """Return the US dollars that an answer itself says it cost, as OpenRouter's do; None where it says nothing."""
    usage = mapping(mapping(body).get("usage"))
    said = number(usage.get("cost"))
    if said is not None and usage.get("is_byok") is True:
        # With a key of the user's own the cost is the fee, and the provider's bill stands beside it.
        theirs = number(mapping(usage.get("cost_details")).get("upstream_inference_cost"))
        return None if theirs is None else said + theirs
    return said or None


def _cached(tokens: int, rate: float | None, name: str, source: str) -> float:
    if not tokens:
        return 0.0
    if rate is None:
        raise UnpricedError(f"{tokens} tokens are priced as {name}, for which {source} has no price")
    return tokens * rate


def _beside_tokens(body: Any, of_map: bool) -> str | None:
    """Say what an answer is billed for that a price of tokens does not tell."""
    answer = mapping(body)
    usage = mapping(answer.get("usage"))
    tier = usage.get("service_tier") or answer.get("service_tier")
    if of_map and isinstance(tier, str) and tier.lower() not in _STANDARD_TIERS:
        return f"the service tier {tier!r} has another price"
    tools = [name for name, count in mapping(usage.get("server_tool_use")).items() if integer(count)]
    tools += [kind for item in sequence(answer.get("output")) if (kind := mapping(item).get("type")) in _PAID_TOOLS]
    if any(mapping(item).get("groundingMetadata") for item in sequence(answer.get("candidates"))):
        tools.append("grounding")
    if tools:
        return f"the provider ran {tools[0]}, which is billed beside the tokens"
    details = [mapping(value) for name, value in usage.items() if name.endswith("_details")]
    if any(integer(detail.get("audio_tokens")) for detail in details):
        return "its audio tokens have another price"
    return None


def _hour_writes(body: Any) -> int:
    """Return how many of the tokens written to the cache are to stay for an hour, which costs more."""
    written = mapping(mapping(mapping(body).get("usage")).get("cache_creation"))
    return integer(written.get("ephemeral_1h_input_tokens")) or 0


def _file_prices(path: Path) -> Iterator[tuple[str, Price]]:
    try:
        raw = path.read_bytes()
        data = tomllib.loads(raw.decode())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as a table of prices ({error})") from None
    models = data.get("models")
    if set(data) != {"models"} or not isinstance(models, dict):
        raise UsageError(f'{path}: it takes a table for each model, as [models."openai/gpt-5"], and nothing else')
    source = f"{path.name} sha256:{hashlib.sha256(raw).hexdigest()[:12]}"
    for model, table in models.items():
        place = f"{path}: models.{model!r}"
        if not isinstance(table, dict):
            raise UsageError(f"{place} is {table!r}; it takes {', '.join(_RATES)} and tiers")
        tiers = table.pop("tiers", [])
        if not isinstance(tiers, list) or not all(isinstance(tier, dict) for tier in tiers):
            raise UsageError(
                f"{place}.tiers is {tiers!r}; it takes tables, each with above and the rates from there on"
            )
        above = [(integer(tier.pop("above", None)), tier) for tier in tiers]
        if any(tokens is None or tokens <= 0 for tokens, _ in above):
            raise UsageError(f"{place}.tiers: each takes above, a whole number of input tokens over 0")
        ordered = sorted(((tokens or 0, rates) for tokens, rates in above), key=lambda each: each[0])
        yield model, Price(source, tuple((tokens, _own_rates(each, place)) for tokens, each in [(0, table), *ordered]))


def _own_rates(values: Mapping[str, Any], place: str) -> Rates:
    """Return rates that a user gave. Raises: UsageError, also for a price of 0, which is none."""
    for name, value in values.items():
        amount = number(value)
        if name not in _RATES:
            raise UsageError(f"{place}: {name} is no price; it takes {', '.join(_RATES)}")
        if amount is None or amount < 0 or (amount == 0 and name in ("input", "output")):
            allowed = "above 0; a model without a price has cost null" if name in ("input", "output") else "from 0 on"
            raise UsageError(f"{place}: {name} is {value!r}; it takes dollars per million tokens, {allowed}")
    if missing := [name for name in ("input", "output") if name not in values]:
        raise UsageError(f"{place}: {missing[0]} is missing; it takes dollars per million tokens")
    return Rates(**{name: float(value) for name, value in values.items()})


def _amount(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _map_price(model: str) -> Price:
    """Return the price of LiteLLM's map. Raises: UnpricedError where there is none, or where it may not hold."""
    provider, _, name = model.partition("/")
    if "@http" in model:
        raise UnpricedError(f"no price is known for {model!r}, a server of its own; pass {OPTION}={_FORM}")
    if provider in ("azure", "azure_openai"):
        raise UnpricedError(f"the deployment {model!r} does not tell its model; pass {OPTION}={_FORM}")
    prefix = provider.replace("-", "_").upper()
    for variable in filter(None, (f"{prefix}_BASE_URL", f"{prefix}_API_BASE", _OTHER_BASES.get(provider))):
        elsewhere = host_variable(variable)
        if elsewhere and urlsplit(elsewhere).hostname != _OWN_HOSTS.get(provider):
            raise UnpricedError(
                f"{variable} leads to {urlsplit(elsewhere).hostname}, whose prices are not known; pass {OPTION}={_FORM}"
            )
    source, table = _litellm_map()
    provider = _MAP_PROVIDERS.get(provider, provider)
    for key in (f"{provider}/{name}", name):
        entry = mapping(table.get(key))
        if _is_of(provider, str(entry.get("litellm_provider"))):
            return Price(source, tuple(_map_tiers(key, entry, source)), of_map=True)
    raise UnpricedError(f"{source} has no price for {model!r}; pass {OPTION}={_FORM}")


def _is_of(provider: str, owner: str) -> bool:
    """Tell whether an entry is of a provider; the map has parts of some, as bedrock_converse."""
    return owner == provider or owner.startswith((f"{provider}_", f"{provider}-"))


def _map_tiers(key: str, entry: Mapping[str, Any], source: str) -> Iterator[tuple[int, Rates]]:
    """Yield the tiers of a map's entry, the lowest first. Raises: UnpricedError."""
    problem = f"{source} has no whole price for {key!r}"
    if odd := [name for name in _NOT_APPLIED if entry.get(name)]:
        raise UnpricedError(f"{problem}: its {odd[0]} is not applied")
    if "search" in key or entry.get("litellm_provider") == "perplexity":
        raise UnpricedError(f"{problem}: it searches with each answer, which is billed beside the tokens")
    if entry.get("output_cost_per_reasoning_token") not in (None, entry.get("output_cost_per_token")):
        raise UnpricedError(f"{problem}: its output_cost_per_reasoning_token is not applied")
    listed = sequence(entry.get("tiered_pricing"))
    if listed:
        starts = [_start(sequence(mapping(tier).get("range"))[:1]) for tier in listed]
        for above, tier in sorted(zip(starts, listed, strict=True), key=lambda each: each[0]):
            yield above, _map_rates(tier, "", problem)
        return
    yield 0, _map_rates(entry, "", problem)
    names = [name.removeprefix(_ABOVE) for name in entry if name.startswith(_ABOVE)]
    marks = [name.removesuffix("k_tokens") for name in names if name.removesuffix("k_tokens").isdigit()]
    for thousands in sorted(map(int, marks)):
        yield thousands * 1000, _map_rates(entry, f"_above_{thousands}k_tokens", problem)


def _map_rates(entry: Mapping[str, Any], suffix: str, problem: str) -> Rates:
    # A price of 0 in the map mostly is one that nobody has filled in.
    rates = {
        name: round((number(entry.get(key + suffix)) or 0.0) * _MILLION, 9) or None for name, key in _MAP_RATES.items()
    }
    given, produced = rates.pop("input"), rates.pop("output")
    if given is None or produced is None or min(given, produced) < 0:
        raise UnpricedError(f"{problem}: a price of 0, or none, is unknown")
    return Rates(given, produced, **rates)


def _start(values: Sequence[Any]) -> int:
    """Return the first of some numbers as a whole one, 0 where there is none."""
    return int(number(values[0]) or 0) if values else 0


@functools.cache
def _litellm_map() -> tuple[str, Mapping[str, Any]]:
    """Return what to call LiteLLM's map, and the map. Read as a file: importing LiteLLM takes seconds.

    Raises: UnpricedError where it is not installed.
    """
    # Imported here: it weighs 3 MiB, which a review of old rollouts does without.
    from importlib import metadata

    try:
        distribution = metadata.distribution("litellm")
    except metadata.PackageNotFoundError:
        raise UnpricedError(
            f"no table of prices is there: pass {OPTION}={_FORM}, or install pytest-benchflow[litellm]"
        ) from None
    source = f"litellm {distribution.version} {_MAP}"
    try:
        table = orjson.loads(Path(str(distribution.locate_file(f"litellm/{_MAP}"))).read_bytes())
    except (OSError, ValueError) as error:
        raise UnpricedError(f"{source} cannot be read ({error}); pass {OPTION}={_FORM}") from None
    return source, mapping(table)
