"""`doctor` says what each kind of sandbox has and lacks here, and tries one on request."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow import cli, registry
from pytest_benchflow.contracts import Capabilities
from pytest_benchflow.rollout.doctor import describe, probe
from pytest_benchflow.sandboxes.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ABLE = Capabilities(
    networks=frozenset({"proxy", "none"}), limits=frozenset({"memory"}), root=False, unseen=("the audit log",)
)


class Shed(LocalBackend):
    """A backend that can do little, and is there unless it says why not."""

    name = "shed"
    capabilities = ABLE

    def __init__(self, missing: str | None = None) -> None:
        self.missing = missing
        self.closed = 0

    def available(self) -> str | None:
        return self.missing

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def shed() -> Iterator[Shed]:
    made = Shed()
    registry.register("sandboxes", "shed", made)
    yield made
    registry.forget_registered()


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Offer a probe of that sandbox, which finds it in order or not."""

    def offer(in_order: bool) -> None:
        name = "pytest_benchflow.sandboxes._shed.probe"
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)

        async def tried(say: Callable[[str], None]) -> bool:
            say("100 commands, 0 sessions before, 0 after")
            return in_order

        module.probe = tried  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)

    return offer


def test_what_it_has_and_lacks_is_said(shed: Shed) -> None:
    assert describe("shed") == (
        True,
        [
            "shed: available",
            "  networks: none, proxy (not allowlist, public)",
            "  limits held: memory (not cpus, processes, storage)",
            "  root: no · stdin: yes · snapshots: no",
            "  not seen against the real thing yet: the audit log",
        ],
    )


def test_why_it_cannot_be_used_is_said(shed: Shed, probes: Callable[[bool], None]) -> None:
    shed.missing = "the shed is locked"
    probes(True)
    usable, lines = describe("shed")
    assert not usable
    assert lines[0] == "shed: not available: the shed is locked"
    assert lines[-1] == "  `pytest-benchflow doctor --probe shed` tries it"


@pytest.mark.parametrize("in_order", [True, False], ids=["in-order", "not-in-order"])
def test_a_probe_is_run_and_its_word_counts(
    shed: Shed, probes: Callable[[bool], None], capsys: pytest.CaptureFixture[str], in_order: bool
) -> None:
    probes(in_order)
    assert cli.main(["doctor", "--probe", "shed"]) == (0 if in_order else 1)
    assert capsys.readouterr().out == "100 commands, 0 sessions before, 0 after\n"
    assert shed.closed == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("local", "--probe is 'local', which has no probe; those that have one: ", id="none"),
        pytest.param("lcal", "sandboxes: nothing is named 'lcal'", id="unknown"),
    ],
)
def test_what_has_no_probe_is_wrong_use(capsys: pytest.CaptureFixture[str], name: str, says: str) -> None:
    assert cli.main(["doctor", "--probe", name]) == 2
    assert says in capsys.readouterr().err


def test_what_is_not_there_cannot_be_probed(shed: Shed, probes: Callable[[bool], None]) -> None:
    shed.missing = "the shed is locked"
    probes(True)
    with pytest.raises(ValueError, match="shed cannot be probed: the shed is locked"):
        probe("shed", print)
