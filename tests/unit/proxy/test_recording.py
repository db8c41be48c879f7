"""Records survive a disk that fails and a process that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from pytest_benchflow.records.journal import read_records
from pytest_benchflow.records.recover import recover_pending
from pytest_benchflow.records.rundir import RunDir

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import asyncio, json, resource, signal, sys
from pathlib import Path
import aiohttp
from pytest_benchflow.proxy.gateway import Gateway
from pytest_benchflow.proxy.script import ScriptTurn
from pytest_benchflow.proxy.scripted import ScriptedUpstream
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.records.rundir import RunDir

rundir = RunDir(Path(sys.argv[1])).create()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

async def main():
    turns = [ScriptTurn(text="x", repeat=True), ScriptTurn(hang=True, match="hang")]
    for number in range(64):
        turns.append(ScriptTurn(text=f"answer {number} " * 40, match=f"question {number}.", pause=0.002))
    gateway = Gateway()
    endpoint = await gateway.open(
        rundir=rundir, upstream=ScriptedUpstream(turns), redactor=Redactor(), model="m", drain=False
    )
    url = f"http://127.0.0.1:{await endpoint.port()}/v1/chat/completions"
    async with aiohttp.ClientSession(headers={"x-api-key": endpoint.token}) as session:
        async def ask(text):
            body = {"messages": [{"role": "user", "content": text}]}
            async with session.post(url, json=body) as answer:
                return answer.status
BODY
    print(json.dumps([report.received, report.recorded, list(report.warnings)]))

asyncio.run(main())
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM.replace("BODY", textwrap.indent(textwrap.dedent(body), " " * 8))]


def report_of(path: Path, body: str) -> Any:
    done = subprocess.run([*program(body), str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_disk_that_fails_once_loses_nothing(tmp_path: Path) -> None:
    received, recorded, warnings = report_of(
        tmp_path,
        """
        assert await ask("one") == 200
        limit(rundir.llm.stat().st_size + 10)
        assert await ask("two") == 200, "the agent gets its answer whatever the disk does"
        limit(resource.RLIM_INFINITY)
        assert await ask("three") == 200
        report = await endpoint.close()
        """,
    )
    assert (received, recorded) == (3, 3)
    assert any("llm_trajectory.jsonl could not be written" in text for text in warnings)
    asked = [record["request"]["body"]["messages"][0]["content"] for record in read_records(RunDir(tmp_path).llm)]
    assert asked == ["one", "two", "three"]


def test_a_disk_that_stays_full_shows_in_the_report(tmp_path: Path) -> None:
    received, recorded, warnings = report_of(
        tmp_path,
        """
        assert await ask("one") == 200
        limit(rundir.llm.stat().st_size + 10)
        assert await ask("two") == 200
        report = await endpoint.close()
        """,
    )
    assert (received, recorded) == (2, 1)
    assert "1 exchange could not be written to llm_trajectory.jsonl" in warnings
    assert len(list(read_records(RunDir(tmp_path).llm))) == 1, "no half line stays"


def test_a_killed_process_leaves_no_exchange_unrecorded(tmp_path: Path) -> None:
    body = """
    assert await ask("one") == 200
    asyncio.ensure_future(ask("hang"))
    while not rundir.llm_pending.read_bytes().startswith(b"{"):
        await asyncio.sleep(0.01)
    print("open", flush=True)
    await asyncio.sleep(600)
    """
    with subprocess.Popen([*program(body), str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.send_signal(signal.SIGKILL)
    rundir = RunDir(tmp_path)
    assert recover_pending(rundir) == 1
    first, second = read_records(rundir.llm)
    assert (first["error"], second["error"]["type"]) == (None, "interrupted")
    assert second["request"]["body"]["messages"][0]["content"] == "hang"
    assert second["metadata"]["started_seq"] == 1
    assert recover_pending(rundir) == 0


def test_64_streams_at_once_are_64_lines_though_the_disk_fails_among_them(tmp_path: Path) -> None:
    received, recorded, warnings = report_of(
        tmp_path,
        """
        async def stream(number):
            body = {"messages": [{"role": "user", "content": f"question {number}."}], "stream": True}
            async with session.post(url, json=body) as answer:
                return await answer.read()

        async def fail():
            while len(lines()) < 8:
                await asyncio.sleep(0.001)
            limit(rundir.llm.stat().st_size + 10)
            known = len(lines())
            # Until all others have ended but could not be written.
            while len(endpoint.open_requests) > 8:
                await asyncio.sleep(0.001)
            assert len(lines()) == known
            limit(resource.RLIM_INFINITY)

        def lines():
            return rundir.llm.read_bytes().splitlines() if rundir.llm.exists() else []

        failing = asyncio.ensure_future(fail())
        answers = await asyncio.gather(*(stream(number) for number in range(64)))
        await failing
        assert all(answer.endswith(b"data: [DONE]\\n\\n") for answer in answers)
        report = await endpoint.close()
        """,
    )
    assert (received, recorded) == (64, 64)
    assert any("llm_trajectory.jsonl could not be written" in text for text in warnings)
    records = list(read_records(RunDir(tmp_path).llm))
    assert sorted(record["metadata"]["started_seq"] for record in records) == list(range(64))
    for record in records:
        number = record["request"]["body"]["messages"][0]["content"].split()[1].strip(".")
        assert record["response"]["body"]["choices"][0]["message"]["content"] == f"answer {number} " * 40
        assert record["error"] is None
