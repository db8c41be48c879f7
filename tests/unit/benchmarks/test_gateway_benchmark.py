"""What the benchmark of the gateway measures is real: whole answers, all events, every request recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from benchmarks.gateway import Target, body, call, cpu_seconds, reports, resident_mib, serving
from benchmarks.gateway_servers import EVENTS, MODEL
from pytest_benchflow.dialects.chat import dialect
from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path


def test_calls_by_the_gateway_are_answered_as_direct_ones_and_recorded(tmp_path: Path) -> None:
    with (
        serving("provider") as (_, said),
        serving("gateway", f"http://127.0.0.1:{said['port']}/v1", str(tmp_path), "2") as (process, told),
    ):
        direct = Target("direct", f"http://127.0.0.1:{said['port']}", "none")
        ours = [Target("gateway", f"http://127.0.0.1:{e['port']}", e["token"], process.pid) for e in told["endpoints"]]
        before = cpu_seconds(process.pid)

        async def ask(target: Target, raw: bytes) -> bytes:
            async with aiohttp.ClientSession() as session:
                return await call(session, target, raw)

        answers = [asyncio.run(ask(target, body(1, 5000))) for target in (direct, *ours)]
        assert answers[0] == answers[1] == answers[2]
        stream = asyncio.run(ask(ours[0], body(2, 5000, stream=True)))
        assert stream.count(b"data: ") == EVENTS
        assert cpu_seconds(process.pid) > before
        assert resident_mib(process.pid) > 1
        assert reports(process) == [(2, 2, []), (1, 1, [])]
    whole, streamed = read_records(RunDir(tmp_path / "0").llm)
    assert whole["request"]["body"]["model"] == MODEL
    for record in (whole, streamed):
        assert dialect.outcome(200, record["response"]["body"], record["error"]).kind == "completed"
        assert dialect.usage(record["response"]["body"]) is not None
    assert dialect.assemble(stream)[0] == streamed["response"]["body"]
