"""Measure what the gateway adds to a call of a model, against the call itself and against LiteLLM's own proxy.

    python -m benchmarks.gateway [--requests N] [--memory N] [--litellm DIRECTORY]

Everything runs on this machine: a provider, the gateway before it, and one client that calls both by turns, so that
whatever else the machine does falls on both. `--litellm` installs LiteLLM's proxy into an environment of its own at
DIRECTORY, when there is none yet, and measures it in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx

from benchmarks.gateway_servers import EVENTS, MODEL, PAUSE_SEC

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY_BYTES = 100_000
STREAMS = 64
ROUNDS = 10
STREAM_ROUNDS = 3
_PATH = "/v1/chat/completions"
_LITELLM_START_SEC = 120.0


@dataclass
class Target:
    """Something to call; `pid` is the process whose CPU and memory count, None for the client itself."""

    name: str
    url: str
    token: str
    pid: int | None = None
    seconds: list[float] = field(default_factory=list)  # of each call
    cpu_ms: list[float] = field(default_factory=list)  # for a call, of each round


def cpu_seconds(pid: int | None) -> float:
    """Return the CPU time that a process has used; the client's own when it is None."""
    return time.process_time() if pid is None else time.clock_gettime(~pid << 3 | 2)


def resident_mib(pid: int) -> float:
    """Return how much memory a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def body(number: int, size: int, *, stream: bool = False) -> bytes:
    """Return a request as an agent sends it: a history that others share, and an end of its own."""
    turn = [
        {"role": "assistant", "content": 'I look at the next file, and run the tests "again" after it.\n' * 4},
        {"role": "tool", "tool_call_id": "call_x", "content": "src/module.py:12: assert value == 3\n\t# é ☃\n" * 30},
    ]
    history = turn * (size // len(json.dumps(turn)))
    last = {"role": "user", "content": f"Question {number}: what is left to do? " * 20}
    asked = {"model": MODEL, "messages": [*history, last], **({"stream": True} if stream else {})}
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()


async def call(session: aiohttp.ClientSession, target: Target, raw: bytes) -> bytes:
    """Return the answer of one call, whole."""
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    async with session.post(target.url + _PATH, data=raw, headers=headers) as answer:
        said = await answer.read()
        if answer.status != 200:
            sys.exit(f"{target.name} answered {answer.status}: {said[:300]!r}")
        return said


async def call_by_httpx(client: httpx.AsyncClient, target: Target, raw: bytes) -> None:
    """Make one call with the library that the providers' own clients are built on."""
    headers = {"Authorization": f"Bearer {target.token}", "Content-Type": "application/json"}
    answer = await client.post(target.url + _PATH, content=raw, headers=headers)
    answer.raise_for_status()


async def by_httpx(target: Target, requests: int) -> None:
    """Note what calls cost a client that is built as the providers' own are."""
    bodies = [body(number, BODY_BYTES) for number in range(16)]
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:  # noqa: S113 - as the gateway: no limit
        for _ in range(ROUNDS):
            before = cpu_seconds(None)
            for number in range(requests // ROUNDS):
                begun = time.perf_counter()
                await call_by_httpx(client, target, bodies[number % len(bodies)])
                target.seconds.append(time.perf_counter() - begun)
            target.cpu_ms.append(1000 * (cpu_seconds(None) - before) / (requests // ROUNDS))


async def one_by_one(targets: list[Target], requests: int) -> None:
    """Call each target in turn, and note how long each call takes and what CPU it costs."""
    bodies = [body(number, BODY_BYTES) for number in range(16)]
    async with aiohttp.ClientSession() as session:
        for target in targets:
            for raw in bodies:
                await call(session, target, raw)
        for turn in range(ROUNDS):
            for target in targets:
                before = cpu_seconds(target.pid)
                for number in range(requests // ROUNDS):
                    begun = time.perf_counter()
                    await call(session, target, bodies[(turn + number) % len(bodies)])
                    target.seconds.append(time.perf_counter() - begun)
                target.cpu_ms.append(1000 * (cpu_seconds(target.pid) - before) / (requests // ROUNDS))


async def together(target: Target) -> tuple[float, float]:
    """Return the seconds that 64 streams at once take at the median, and the target's CPU ms for one of them."""
    raws = [body(number, BODY_BYTES, stream=True) for number in range(STREAMS)]
    connector = aiohttp.TCPConnector(limit=0)

    async def timed(session: aiohttp.ClientSession, raw: bytes) -> float:
        begun = time.perf_counter()
        said = await call(session, target, raw)
        if said.count(b"data: ") != EVENTS:
            sys.exit(f"{target.name} lost events of a stream: {said.count(b'data: ')} of {EVENTS} came")
        return time.perf_counter() - begun

    async with aiohttp.ClientSession(connector=connector) as session:
        before = cpu_seconds(target.pid)
        taken = await asyncio.gather(*(timed(session, raw) for raw in raws))
        return statistics.median(taken), 1000 * (cpu_seconds(target.pid) - before) / STREAMS


async def many(targets: list[Target], requests: int) -> list[tuple[int, float]]:
    """Return (requests so far, MiB of the gateway), after each tenth of them; each target gets its share."""
    bodies = [body(number, BODY_BYTES // 5) for number in range(64)]
    memory = []
    share = requests // len(targets)
    async with aiohttp.ClientSession() as session:
        for done, target in enumerate(targets, 1):
            lanes = [range(lane, share, 8) for lane in range(8)]
            await asyncio.gather(*(_calls(session, target, bodies, lane) for lane in lanes))
            assert target.pid is not None
            memory.append((done * share, resident_mib(target.pid)))
    return memory


async def _calls(session: aiohttp.ClientSession, target: Target, bodies: list[bytes], numbers: range) -> None:
    for number in numbers:
        await call(session, target, bodies[number % len(bodies)])


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Start one of `benchmarks.gateway_servers` and yield it with what it says at its start; end it afterwards."""
    command = [sys.executable, "-m", "benchmarks.gateway_servers", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()


def reports(process: subprocess.Popen[str]) -> list[tuple[int, int, list[str]]]:
    """End a gateway and return what it received and recorded at each endpoint, and its warnings."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    return [tuple(each) for each in json.loads(process.stdout.readline())]


@contextmanager
def litellm(directory: Path, base_url: str, scratch: Path) -> Iterator[Target]:
    """Start LiteLLM's own proxy before the provider, installed at `directory` where it is not yet."""
    program = directory / "bin" / "litellm"
    if not program.exists():
        print(f"installing LiteLLM's proxy at {directory} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([directory / "bin" / "pip", "install", "--quiet", "litellm[proxy]"], check=True)
    routed = {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": "a-key-of-the-provider"}
    config = {"model_list": [{"model_name": MODEL, "litellm_params": routed}]}
    settings = scratch / "litellm.yaml"
    settings.write_text(json.dumps({**config, "general_settings": {"master_key": "sk-measured"}}), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_LOG": "ERROR"}
    command = [str(program), "--config", str(settings), "--host", "127.0.0.1", "--port", str(port)]
    with (scratch / "litellm.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **offline}, cwd=scratch)
        try:
            _await_port(port, process)
            yield Target("LiteLLM's proxy", f"http://127.0.0.1:{port}", "sk-measured", process.pid)
        finally:
            process.terminate()
            process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + _LITELLM_START_SEC
    while time.monotonic() < ends and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    sys.exit("LiteLLM's proxy does not start")


def show_calls(direct: Target, others: list[Target], requests: int) -> None:
    """Print what a call takes, and what it costs, as ratios to the direct call."""
    print(f"\n{requests} calls of each by turns, one at a time, with bodies of {BODY_BYTES // 1000} kB")
    print(f"{'':<18}{'p50 ms':>9}{'added ms':>10}{'p99 ms':>9}{'CPU ms':>9}{'x client':>10}")
    p50 = statistics.median(direct.seconds)
    cpu = statistics.median(direct.cpu_ms)
    for each in (direct, *others):
        taken = sorted(each.seconds)
        middle, late = statistics.median(taken), taken[len(taken) * 99 // 100]
        cost = statistics.median(each.cpu_ms)
        added = f"{1000 * (middle - p50):.2f}" if each.pid else ""
        print(f"{each.name:<18}{1000 * middle:>9.2f}{added:>10}{1000 * late:>9.2f}{cost:>9.2f}{cost / cpu:>10.2f}")


def measure(options: argparse.Namespace, scratch: Path) -> None:
    """Start the servers, measure and print."""
    with ExitStack() as stack:
        _, said = stack.enter_context(serving("provider"))
        base = f"http://127.0.0.1:{said['port']}"
        process, said = stack.enter_context(serving("gateway", f"{base}/v1", str(scratch / "gateway"), "12"))
        ours = [
            Target("the gateway", f"http://127.0.0.1:{each['port']}", each["token"], process.pid)
            for each in said["endpoints"]
        ]
        direct = Target("direct", base, "none")
        others = ours[:1]
        if options.litellm:
            others.append(stack.enter_context(litellm(options.litellm.absolute(), f"{base}/v1", scratch)))
        by_library = Target("direct, by httpx", base, "none")
        asyncio.run(one_by_one([direct, *others], options.requests))
        asyncio.run(by_httpx(by_library, options.requests))
        show_calls(direct, [by_library, *others], options.requests)

        print(f"\n{STREAMS} streams at once, {EVENTS} events each, one every {1000 * PAUSE_SEC:g} ms")
        print(f"{'':<18}{'median s':>9}{'added %':>9}{'CPU ms':>9}")
        taken: dict[str, list[tuple[float, float]]] = {}
        for _ in range(STREAM_ROUNDS):
            for target in (direct, ours[1], *others[1:]):
                taken.setdefault(target.name, []).append(asyncio.run(together(target)))
        bare = statistics.median(seconds for seconds, _ in taken["direct"])
        for name, rounds in taken.items():
            seconds = statistics.median(each for each, _ in rounds)
            cpu = statistics.median(each for _, each in rounds)
            print(f"{name:<18}{seconds:>9.3f}{100 * (seconds / bare - 1):>9.1f}{cpu:>9.2f}")

        memory = asyncio.run(many(ours[2:], options.memory))
        print(f"\nmemory of the gateway after so many requests of {BODY_BYTES // 5000} kB, MiB")
        print("  ".join(f"{count}: {mib:.0f}" for count, mib in memory))
        found = reports(process)
        received, recorded = (sum(column) for column in list(zip(*found, strict=True))[:2])
        print(f"\nrequests received: {received}, recorded: {recorded}")
        if received != recorded or any(warnings for _, _, warnings in found):
            sys.exit(f"the gateway lost something: {found}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="measure what the gateway adds to a call of a model")
    parser.add_argument("--requests", type=int, default=500, help="calls of each target (default: 500)")
    parser.add_argument("--memory", type=int, default=10_000, help="calls over which memory is watched (10000)")
    parser.add_argument(
        "--litellm", type=Path, metavar="DIRECTORY", help="measure LiteLLM's proxy too, installed there"
    )
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as place:
        measure(given, Path(place))
