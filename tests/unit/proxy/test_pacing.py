"""What a provider allows one key is kept by all rollouts and all processes of a session together."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from pytest_benchflow.proxy._pacing import Pacing, account_name, retry_after
from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.http import HttpUpstream
from tests.unit.proxy.door import asking, door, run, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.unit.proxy.door import Door

REFUSAL = b'{"error": {"message": "slow down", "type": "rate_limit_error", "unheard_of": [1.0]}}'
ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}'


class Provider:
    """A server that refuses the first `refusals` calls, and counts those that are open."""

    def __init__(self, refusals: int = 0, headers: dict[str, str] | None = None, *, takes: float = 0.0) -> None:
        self.refusals = refusals
        self.headers = {"Retry-After": "0.5"} if headers is None else headers
        self.takes = takes
        self.asked = self.refused = self.open = self.most = 0
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.asked += 1
        if self.refused < self.refusals:
            self.refused += 1
            return web.Response(status=429, body=REFUSAL, headers=self.headers, content_type="application/json")
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(ANSWER[:20])
            await asyncio.sleep(self.takes)
            await response.write(ANSWER[20:])
            await response.write_eof()
            return response
        finally:
            self.open -= 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Provider]:
        runner = web.ServerRunner(web.Server(self.handle, access_log=None, handler_cancellation=True))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site.port}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()


@asynccontextmanager
async def rollouts(
    path: Path, provider: Provider, keys: tuple[str, ...], *, limit: int | None = None
) -> AsyncIterator[list[Door]]:
    """Open a door for each key, all on one gateway."""
    gateway = Gateway(pacing=Pacing(path / "shared", limit=limit))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(provider.serving())
        yield [
            await stack.enter_async_context(
                door(path / str(number), HttpUpstream(provider.url, api_key=key, model="m"), gateway=gateway)
            )
            for number, key in enumerate(keys)
        ]


def waits(agent: Door) -> list[dict[str, Any]]:
    """Return what each recorded exchange waited for."""
    return [record["metadata"].get("waited", {}) for record in agent.records()]


@pytest.mark.parametrize("refusals", [1, 2], ids=["one-refusal", "two-in-a-row"])
def test_a_pause_that_one_rollout_is_asked_for_is_kept_by_all_of_its_key(tmp_path: Path, refusals: int) -> None:
    async def work() -> None:
        provider = Provider(refusals)
        async with rollouts(tmp_path, provider, ("k", "k")) as (one, other):
            first = asyncio.create_task(one.post(asking("first")))
            await until(lambda: provider.refused)
            rest = [asyncio.create_task(agent.post(asking("x"))) for agent in (one, other) for _ in range(4)]
            answers = await asyncio.gather(first, *rest)
            assert [answer.status for answer in answers] == [200] * 9
            # After a pause one call goes first: eight that wait are not refused one by one.
            assert (provider.refused, provider.asked) == (refusals, 9 + refusals)
            waited = [*waits(one), *waits(other)]
            assert sum(each["rate_limited"] for each in waited) == refusals
            assert all(each["rate_limit_ms"] > 100 for each in waited)
            attempts = [record["metadata"]["upstream_attempt"] for record in (*one.records(), *other.records())]
            assert sum(attempts) == provider.asked

    run(work())


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "3600"}, {}, {"Retry-After": "soon"}],
    ids=["too-long", "without-a-time", "no-time"],
)
def test_a_refusal_that_cannot_be_waited_out_reaches_the_agent_as_it_is(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async def work() -> None:
        provider = Provider(1, {**headers, "x-ratelimit-remaining-tokens": "0"})
        async with rollouts(tmp_path, provider, ("k",)) as (agent,):
            answer = await agent.post(asking("x"))
            assert (answer.status, answer.raw) == (429, REFUSAL)
            assert answer.headers.get("Retry-After") == headers.get("Retry-After")
            assert answer.headers["x-ratelimit-remaining-tokens"] == "0"
            (record,) = agent.records()
            assert (record["response"]["status_code"], record["response"]["body"]) == (429, answer.json)
            assert (record["error"], waits(agent)) == (None, [{}])
            assert (await agent.post(asking("again"))).status == 200, "nobody is kept for an hour"

    run(work())


def test_when_patience_ends_the_agent_sees_the_refusal_and_the_record_says_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_benchflow.proxy._pacing.LONGEST_PAUSE_SEC", 1.0)

    async def work() -> None:
        provider = Provider(99, {"retry-after-ms": "10"})
        async with rollouts(tmp_path, provider, ("k",)) as (agent,):
            answer = await agent.post(asking("x"))
            assert (answer.status, answer.raw) == (429, REFUSAL)
            (record,) = agent.records()
            assert record["metadata"]["waited"]["rate_limited"] == provider.asked - 1 == 1
            assert record["metadata"]["upstream_attempt"] == 2
            assert record["duration_ms"] > record["metadata"]["waited"]["rate_limit_ms"] > 400

    run(work())


def test_another_key_does_not_wait(tmp_path: Path) -> None:
    async def work() -> None:
        provider = Provider(1, {"Retry-After": "60"})
        async with rollouts(tmp_path, provider, ("k", "another")) as (one, other):
            paused = asyncio.create_task(one.post(asking("x")))
            await until(lambda: provider.refused)
            assert (await other.post(asking("x"))).status == 200
            assert waits(other) == [{}]
            paused.cancel()
            await until(one.records)
            (record,) = one.records()
            # Nobody waits for it any more, so that it is not sent again.
            assert (record["error"]["type"], record["response"], provider.asked) == ("client_gone", None, 2)

    run(work())


def test_so_many_calls_are_open_at_once_and_each_waits_for_its_turn(tmp_path: Path) -> None:
    async def work() -> None:
        provider = Provider(takes=0.05)
        async with rollouts(tmp_path, provider, ("k", "k", "other"), limit=2) as agents:
            answers = await asyncio.gather(*(agent.post(asking("x")) for agent in agents for _ in range(4)))
            assert [answer.raw for answer in answers] == [ANSWER] * 12
            assert provider.most == 4, "two of each key"
            waited = [each for agent in agents for each in waits(agent)]
            assert sum(not each for each in waited) == 4
            assert all(each["concurrency_ms"] > 0 and not each["rate_limited"] for each in waited if each)

    run(work())


OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from pytest_benchflow.proxy._pacing import Pacing
from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.http import HttpUpstream
from tests.unit.proxy.door import asking, door

async def work(path, url):
    gateway = Gateway(pacing=Pacing(path / "shared", limit=2))
    upstream = HttpUpstream(url, api_key="k", model="m")
    async with door(path / "theirs", upstream, gateway=gateway) as agent:
        print((await asyncio.gather(*(agent.post(asking("x")) for _ in range(4))))[0].status)

asyncio.run(work(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("killed", [False, True], ids=["that-ends", "that-is-killed"])
def test_the_limit_holds_for_all_processes_of_a_session(tmp_path: Path, *, killed: bool) -> None:
    async def work() -> None:
        provider = Provider(takes=60 if killed else 0.05)
        async with rollouts(tmp_path, provider, ("k",), limit=2) as (agent,):
            command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path), provider.url]
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            await until(lambda: provider.open == 2 or provider.asked > 2)
            ours = [asyncio.create_task(agent.post(asking("x"))) for _ in range(4)]
            if killed:
                assert len(ours) == 4
                await until(lambda: agent.endpoint.received == 4)
                provider.takes = 0.0
                process.kill()
            answers = await asyncio.gather(*ours)
            said, _ = await process.communicate()
            assert [answer.status for answer in answers] == [200] * 4
            assert (provider.most, said) == (2, b"" if killed else b"200\n")
        assert killed or provider.asked == 8
        assert not (tmp_path / "shared").exists(), "it goes with the last process"

    run(work())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
    ],
    ids=["seconds", "fraction", "milliseconds", "negative", "endless", "none"],
)
def test_the_time_to_wait_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


def test_the_time_to_wait_may_be_a_date() -> None:
    then = datetime.now(UTC) + timedelta(seconds=100)
    seconds = retry_after({"Retry-After": format_datetime(then, usegmt=True)})
    assert seconds is not None
    assert 90 < seconds <= 100
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0


def test_a_time_from_before_the_machine_slept_holds_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        provider = Provider()
        async with rollouts(tmp_path, provider, ("k",)) as (agent,):
            (tmp_path / "shared" / f"{account_name(provider.url[7:-3], 'k')}.until").write_text(
                f"{time.monotonic() - 10:020.6f}"
            )
            assert (await agent.post(asking("x"))).status == 200
            assert waits(agent) == [{}]

    run(work())
