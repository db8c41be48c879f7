"""--benchflow-agent-network: what an agent reaches beside its model is what its task declares for it, or less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.bench import Bench

# Asks for a page of two hosts that nobody has, and keeps what it was answered.
SOLVE = """\
#!/bin/sh
python3 - <<'END' > /logs/artifacts/found.txt
import os, urllib.error, urllib.request
for host in ("listed.invalid", "other.invalid"):
    if "http_proxy" not in os.environ:
        print("no way out")
        continue
    try:
        urllib.request.urlopen(f"http://{host}/", timeout=60)
    except urllib.error.HTTPError as error:
        print(error.code, error.reason)
END
echo done > /app/out.txt
"""
CLOSED = ["no way out"] * 2
OPEN = ["502 this host cannot resolve listed.invalid", "502 this host cannot resolve other.invalid"]
LISTED = [OPEN[0], "403 other.invalid is none of the hosts that the task allows: listed.invalid"]
LIST = 'network_mode = "allowlist"\nallowed_hosts = ["listed.invalid"]\n'


@pytest.mark.parametrize(
    ("agent", "environment", "option", "found", "recorded", "warned"),
    [
        pytest.param("", "", "declared", CLOSED, "proxy", "", id="nothing-said"),
        pytest.param(LIST, "", "declared", LISTED, "allowlist", "", id="a-list"),
        pytest.param('network_mode = "public"', "", "declared", OPEN, "public", "", id="public"),
        pytest.param(LIST, "", "proxy", CLOSED, "proxy", "agent-network=proxy withholds it", id="a-list-withheld"),
        pytest.param("", LIST, "declared", CLOSED, "proxy", "not in [agent]", id="only-the-environment"),
        pytest.param("", LIST, "environment", LISTED, "allowlist", "", id="the-environment-asked"),
    ],
)
def test_the_agent_reaches_what_is_declared(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    *,
    agent: str,
    environment: str,
    option: str,
    found: list[str],
    recorded: str,
    warned: str,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    toml = f"[agent]\n{agent}\n[environment]\n{environment}\n[verifier]\nnetwork_mode = 'no-network'\n"
    bench.task(toml=toml, solve=SOLVE)
    asked = [] if option == "declared" else [f"--benchflow-agent-network={option}"]
    assert bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", *asked).ret == 0
    (rollout,) = bench.rollouts()
    (kept,) = rollout.rglob("found.txt")
    told = kept.read_text().splitlines()
    assert [line[: len(expected)] for line, expected in zip(told, found, strict=True)] == found
    assert bench.config(rollout)["network"]["agent"] == recorded
    warnings = " ".join(bench.result(rollout)["warnings"])
    assert (warned in warnings) if warned else warnings == ""


def test_another_value_is_refused(bench: Bench) -> None:
    bench.task()
    bench.refused("tasks", "--benchflow-agent-network=open", says="declared, proxy, environment")
