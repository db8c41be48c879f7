"""The reaper removes what is exactly ours and surely over, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_benchflow import registry
from pytest_benchflow.contracts import Remain
from pytest_benchflow.errors import SandboxError, UsageError
from pytest_benchflow.rollout.host import Host
from pytest_benchflow.rollout.reaper import Reaping, Situation, decide, duration, latest, reap
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes._labels import MANAGED, MAX_OWNER, OWNER, SCRATCH, UNTIL, labels, normalised, owner_of
from pytest_benchflow.sandboxes._local.sessions import base_directory, lock_if_dead, note_ended
from pytest_benchflow.sandboxes._local.sessions import ended as known_ended
from pytest_benchflow.sandboxes.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NOW = 1_790_000_000.0
HOUR = 3600.0
OURS = "ada"
OPERATORS = ("ada", "ada-2", "bob", "Ada")
BASE = "/tmp/pytest-benchflow-0"
LIVE, DEAD = f"{BASE}/11-aaaaaaaa", f"{BASE}/22-bbbbbbbb"
SITUATION = Situation(OURS, NOW, live=frozenset({LIVE}), dead=frozenset({DEAD}))


def remain(
    own: dict[str, str] | None = None,
    *,
    created: Any = NOW - 3 * HOUR,
    active: Any = None,
    more: dict[str, str] | None = None,
) -> Remain:
    found = labels(OURS, Path("/elsewhere/33-cccccccc/bf-1")) if own is None else own
    return Remain("sb-1", "cloud", {**found, **(more or {})}, created, active)


@pytest.mark.parametrize(
    ("found", "fate", "reason"),
    [
        pytest.param(remain(), "delete", "3 h old", id="old-and-ours"),
        pytest.param(remain({MANAGED: "1", OWNER: OURS}), "delete", "3 h old", id="ours-with-the-short-mark"),
        pytest.param(remain({MANAGED: "1:bob", OWNER: "bob"}), "others", "another operator's", id="anothers"),
        pytest.param(remain({MANAGED: "1", OWNER: "bob"}), "others", "another operator's", id="anothers-short-mark"),
        pytest.param(remain({MANAGED: "1", OWNER: "ADA"}), "others", "another operator's", id="another-case"),
        pytest.param(remain({MANAGED: "1", OWNER: "ada "}), "others", "another operator's", id="another-space"),
        pytest.param(remain({MANAGED: "1:ada-2", OWNER: "ada-2"}), "others", "another operator's", id="a-longer-name"),
        pytest.param(remain({}), "others", "none of this package's", id="no-labels"),
        pytest.param(remain({MANAGED: "1"}), "warn", "without benchflow.owner", id="a-mark-without-owner"),
        pytest.param(remain({MANAGED: "1:ada"}), "warn", "without benchflow.owner", id="our-mark-without-owner"),
        pytest.param(remain({MANAGED: "1", OWNER: ""}), "warn", "without benchflow.owner", id="an-empty-owner"),
        pytest.param(remain({OWNER: OURS}), "warn", "without benchflow.managed", id="our-name-without-a-mark"),
        pytest.param(remain({MANAGED: "1:bob", OWNER: OURS}), "warn", "does not fit", id="anothers-mark-our-name"),
        pytest.param(remain({MANAGED: "1:ada", OWNER: "bob"}), "warn", "does not fit", id="our-mark-anothers-name"),
        pytest.param(remain({MANAGED: "true", OWNER: OURS}), "warn", "does not fit", id="a-mark-of-another-kind"),
        pytest.param(remain({MANAGED: "0", OWNER: OURS}), "warn", "does not fit", id="a-mark-that-says-no"),
        pytest.param(remain(created=NOW - 1.9 * HOUR), "keep", "younger than 2 h", id="young"),
        pytest.param(remain(created=NOW + HOUR), "keep", "younger than 2 h", id="from-the-future"),
        pytest.param(remain(created=None), "keep", "age is not known (created: nothing)", id="no-time"),
        pytest.param(remain(created="yesterday"), "keep", "age is not known (created: 'yesterday')", id="garbled-time"),
        pytest.param(remain(created="0001-01-01T00:00:00Z"), "keep", "age is not known", id="a-moment-that-never-was"),
        pytest.param(remain(created=float("nan")), "keep", "age is not known", id="not-a-number"),
        pytest.param(remain(created="2026-09-01T10:00:00Z"), "delete", "old", id="iso-with-zone"),
        pytest.param(remain(created="2026-09-01T10:00:00.123456789Z"), "delete", "old", id="iso-with-nanoseconds"),
        pytest.param(remain(created="2026-09-01T10:00:00"), "delete", "old", id="naive-and-old-anywhere"),
        pytest.param(remain(active=NOW - 60), "keep", "active 1 min ago", id="recently-active"),
        pytest.param(remain(active=NOW + 60), "keep", "active", id="active-in-the-future"),
        pytest.param(remain(active="soon"), "keep", "last activity is not known", id="garbled-activity"),
        pytest.param(remain(active=NOW - HOUR), "delete", "3 h old", id="idle"),
        pytest.param(remain(more={UNTIL: str(int(NOW + HOUR))}), "keep", "for another 1 h", id="within-its-limits"),
        pytest.param(remain(more={UNTIL: str(int(NOW - 1))}), "delete", "3 h old", id="past-its-limits"),
        pytest.param(remain(more={UNTIL: "never"}), "keep", "its end is not known", id="a-garbled-end"),
        pytest.param(remain(more={SCRATCH: f"{LIVE}/bf-1"}), "keep", "its session is alive", id="of-a-live-session"),
        pytest.param(
            remain(created=NOW - 1, more={SCRATCH: f"{DEAD}/bf-1"}),
            "delete",
            "its session is dead",
            id="young-but-dead",
        ),
        pytest.param(
            remain({MANAGED: "1:bob", OWNER: "bob", SCRATCH: f"{DEAD}/bf-1"}), "others", "another", id="dead-but-bobs"
        ),
        pytest.param(
            remain(created=NOW - 1, more={SCRATCH: f"{DEAD}0/bf-1"}), "keep", "younger", id="a-name-that-begins-alike"
        ),
    ],
)
def test_one_sandbox(found: Remain, fate: str, reason: str) -> None:
    decision = decide(found, SITUATION)
    assert (decision.fate, reason in decision.reason) == (fate, True), decision


def test_a_time_without_a_zone_is_the_latest_that_it_may_mean() -> None:
    told = datetime.fromtimestamp(NOW - 3 * HOUR, UTC)
    assert decide(remain(created=told), SITUATION).fate == "delete"
    assert decide(remain(created=told.replace(tzinfo=None)), SITUATION).fate == "keep"
    for hours in range(-12, 15):
        moment = datetime(2026, 9, 1, 12, tzinfo=timezone(timedelta(hours=hours)))
        assert (latest(moment.replace(tzinfo=None)) or 0) >= moment.timestamp()


def test_whoever_looks_for_the_bare_mark_does_not_find_ours() -> None:
    assert labels(OURS, Path("/x"))[MANAGED] != "1"


def generated(count: int, seed: int) -> Iterator[tuple[Remain, bool]]:
    """Yield sandboxes of four operators, each with whether it is ours to remove, as whoever made it knows."""
    made = random.Random(seed)  # noqa: S311 - invented data
    for number in range(count):
        operator = made.choice(OPERATORS)
        kind = made.choice(
            ["old", "old", "old", "young", "active", "live", "dead", "orphan", "mismatch", "naive", "none"]
        )
        session = {"live": LIVE, "dead": DEAD}.get(kind, f"{BASE}/{number}-{made.getrandbits(32):08x}")
        own = labels(operator, Path(session) / f"bf-{number}")
        if made.random() < 0.3:
            own[MANAGED] = "1"
        created: Any = NOW - made.uniform(2.1, 900) * HOUR
        active = NOW - made.uniform(0.3, 2) * HOUR if made.random() < 0.5 else None
        if kind == "young":
            created = NOW - made.uniform(0, 1.9) * HOUR
        elif kind == "active":
            active = NOW - made.uniform(0, 800)
        elif kind == "orphan":
            del own[made.choice([MANAGED, OWNER])]
        elif kind == "mismatch":
            own[MANAGED] = f"1:{operator}x"
        elif kind == "naive":
            created = datetime.fromtimestamp(NOW - made.uniform(0, 13.9) * HOUR, UTC).replace(tzinfo=None)
        elif kind == "none":
            created = made.choice([None, "", "n/a", -5])
        elif kind == "old" and made.random() < 0.5:
            created = datetime.fromtimestamp(created, UTC).isoformat()
        yield Remain(f"sb-{number}", "cloud", own, created, active), operator == OURS and kind in ("old", "dead")


@pytest.mark.parametrize("seed", range(5))
def test_of_a_thousand_sandboxes_of_four_operators_exactly_ours_are_deleted(seed: int) -> None:
    made = list(generated(1000, seed))
    deleted = {found.name for found, _ in made if decide(found, SITUATION).fate == "delete"}
    ours = {found.name for found, is_ours in made if is_ours}
    assert deleted == ours
    assert 50 < len(ours) < 500


TIMES = st.one_of(
    st.none(),
    st.text(max_size=30),
    st.floats(),
    st.integers(),
    st.datetimes(timezones=st.one_of(st.none(), st.just(UTC))),
    st.datetimes().map(datetime.isoformat),
)
VALUES = st.one_of(
    st.sampled_from(["", "1", "0", "1:", "true", *OPERATORS, *(f"1:{name}" for name in OPERATORS)]), st.text(max_size=8)
)
LABELS = st.fixed_dictionaries(
    {},
    optional={
        MANAGED: VALUES,
        OWNER: VALUES,
        SCRATCH: st.sampled_from([f"{LIVE}/bf-1", f"{DEAD}/bf-1", "", "bf-1", "/"]),
        UNTIL: st.one_of(st.text(max_size=12), st.integers().map(str)),
    },
)


@settings(deadline=None)
@given(own=LABELS, created=TIMES, active=TIMES, owner=st.sampled_from(OPERATORS))
def test_whatever_is_deleted_names_its_owner_exactly_and_is_old_or_dead(
    own: dict[str, str], created: Any, active: Any, owner: str
) -> None:
    situation = Situation(owner, NOW, live=frozenset({LIVE}), dead=frozenset({DEAD}))
    decision = decide(Remain("sb", "cloud", own, created, active), situation)
    if decision.fate != "delete":
        assert decision.reason
        return
    assert own[OWNER] == owner
    assert own[MANAGED] in ("1", f"1:{owner}")
    assert not own.get(SCRATCH, "").startswith(LIVE)
    if not own.get(SCRATCH, "").startswith(DEAD):
        known = latest(created)
        assert known is not None
        assert known <= NOW - 2 * HOUR
    for other in set(OPERATORS) - {owner}:
        assert decide(Remain("sb", "cloud", own, created, active), Situation(other, NOW)).fate != "delete"


@settings(deadline=None)
@given(name=st.text(max_size=200))
def test_an_owners_name_fits_a_label_and_stays_as_it_is(name: str) -> None:
    owner = normalised(name)
    assert len(owner) <= MAX_OWNER
    assert normalised(owner) == owner
    assert owner.isascii()


@pytest.mark.parametrize(
    ("one", "another"),
    [
        pytest.param("team a", "team-a", id="spaces"),
        pytest.param("x" * 70 + "1", "x" * 70 + "2", id="lengths"),
        pytest.param("zoë", "zoé", id="letters"),
    ],
)
def test_names_that_would_become_one_stay_two(one: str, another: str) -> None:
    assert normalised(one) != normalised(another)


def test_the_owner_is_the_variables_else_one_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "one"))
    mine = owner_of("cloud")
    assert mine == owner_of("cloud") == owner_of("another") == (tmp_path / "one" / "owner").read_text().strip()
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "two"))
    assert owner_of("cloud") != mine
    monkeypatch.setenv("BENCHFLOW_CLOUD_OWNER", " Ada ")
    assert owner_of("cloud") == "ada"
    monkeypatch.setenv("BENCHFLOW_CLOUD_OWNER", "!!")
    with pytest.raises(UsageError, match="BENCHFLOW_CLOUD_OWNER is '!!'; it takes a name of letters"):
        owner_of("cloud")


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (90, "1.5 min"), (7200, "2 h"), (200_000, "2.31 d"), (-90, "-1.5 min")]
)
def test_a_duration_is_told_in_its_own_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Cloud(LocalBackend):
    """A backend that others use too; `stuck` is what it does not remove."""

    name = "cloud"

    def __init__(self, found: list[Remain], *, stuck: str = "", silent: str = "") -> None:
        self.found = {each.name: each for each in found}
        self.stuck = stuck
        self.silent = silent

    async def remains(self) -> list[Remain]:
        if self.silent:
            raise SandboxError(self.silent)
        return list(self.found.values())

    def reap(self, *_: object) -> bool:
        return True

    async def discard(self, name: str) -> None:
        if name == self.stuck:
            raise SandboxError("it is stuck")
        del self.found[name]


async def gathered(reapings: AsyncIterator[Reaping]) -> list[Reaping]:
    return [each async for each in reapings]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("BENCHFLOW_CLOUD_OWNER", OURS)
    own = [{MANAGED: f"1:{name}", OWNER: name} for name in OPERATORS]
    found = [Remain(f"{owner[OWNER]}-{n}", "cloud", owner, 1000.0) for owner, n in itertools.product(own, range(5))]
    yield Cloud([*found, Remain("orphan", "cloud", {MANAGED: "1"}, 1000.0)])
    registry.forget_registered()


def test_what_is_decided_is_removed_and_told(cloud: Cloud) -> None:
    cloud.stuck = "ada-3"
    before = list(cloud.found)
    (dry,) = asyncio.run(gathered(reap([cloud], dry_run=True)))
    assert list(cloud.found) == before
    (real,) = asyncio.run(gathered(reap([cloud])))
    assert set(before) - set(cloud.found) == {"ada-0", "ada-1", "ada-2", "ada-4"}
    assert [each.fate for each in dry.decisions] == [each.fate for each in real.decisions]
    assert len(real.removed) == 4
    told = real.lines()
    assert [line.partition(": ")[2] for line in told if "ada-3" in line] == ["NOT removed ada-3: it is stuck"]
    assert any(line.startswith("cloud: warning: orphan has benchflow.managed='1' without") for line in told)
    assert told[-1] == "cloud: 15 of others left alone"
    assert sum("would remove" in line for line in dry.lines(dry_run=True)) == 5


def young(name: str, session: Path) -> Remain:
    return Remain(name, "cloud", labels(OURS, session / "bf-1"), time.time())


def test_a_young_sandbox_of_a_session_that_is_over_goes_at_once(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    name, here = base_directory().name, tmp_path / "tmp" / base_directory().name
    registry.register("sandboxes", "cloud", cloud)

    async def session(*, ends: bool) -> Path:
        async with Host() as host:
            scratch = host.scratch.new("bf-1")
            facts = {"sandbox": "bf-1", "backend": "cloud", "scratch": str(scratch), "dies_with_process": False}
            for event in ("create", "created", *(["deleted"] if ends else [])):
                host.ledger.add(None, event, **facts)
        return scratch.parent

    ended, killed = (asyncio.run(session(ends=ends)) for ends in (True, False))
    asyncio.run(session(ends=True))  # and its start looks for what the killed one left, which is not there yet
    assert list(here.iterdir()) == []
    (tmp_path / "other" / name / "33-cccccccc").mkdir(parents=True)
    with ScratchBase(tmp_path / "other" / name) as live:
        places = {
            "over": ended,
            "killed": killed,
            "killed-elsewhere": tmp_path / "other" / name / "33-cccccccc",
            "live-elsewhere": live.open(),
            "gone-elsewhere": tmp_path / "other" / name / "44-dddddddd",
            "of-another-name": tmp_path / "other",
            "never-known": here / "55-eeeeeeee",
        }
        cloud.found = {each: young(each, place) for each, place in places.items()}
        (done,) = asyncio.run(gathered(reap([cloud])))
    assert {each.remain.name: each.reason for each in done.decisions if each.fate == "delete"} == dict.fromkeys(
        ("over", "killed", "killed-elsewhere"), "its session is dead"
    )
    assert list(cloud.found) == ["live-elsewhere", "gone-elsewhere", "of-another-name", "never-known"]


def test_a_session_whose_directory_another_one_is_removing_is_over(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (doomed := base_directory() / ".trash-33-cccccccc-0a1b2c3d").mkdir(parents=True)
    cloud.found = {"left": young("left", base_directory() / "33-cccccccc")}
    with lock_if_dead(doomed):
        (done,) = asyncio.run(gathered(reap([cloud], dry_run=True)))
    assert [(each.fate, each.reason) for each in done.decisions] == [("delete", "its session is dead")]


def test_what_is_kept_of_sessions_that_are_over_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path))
    for number in range(3000):
        note_ended(f"{number}-{'a' * 30}")
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 100_000
    assert f"2999-{'a' * 30}" in known_ended()
    assert f"0-{'a' * 30}" not in known_ended()
    path.unlink()
    path.symlink_to(tmp_path / "other")
    note_ended("1-a")
    assert not (tmp_path / "other").exists()


def test_a_backend_that_does_not_answer_is_told_and_the_next_one_asked(cloud: Cloud) -> None:
    silent, asked = asyncio.run(gathered(reap([Cloud([], silent="no answer"), cloud])))
    assert silent.lines() == ["cloud: warning: it is not known what is left: no answer"]
    assert len(asked.removed) == 5
