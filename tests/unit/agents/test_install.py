"""An agent is installed once, in a sandbox, and a failed installation leaves nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, cast

import pytest

from pytest_benchflow import registry
from pytest_benchflow.agents._catalog import CatalogAgent
from pytest_benchflow.catalog.load import Manifest
from pytest_benchflow.errors import AgentError
from pytest_benchflow.tasks.load import load_task
from tests.contracts.agentrig import make_task

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.contracts import Backend, Mount

COUNTING = 'echo installing; sleep 0.5; echo run >> "$BENCHFLOW_AGENT_DIR/runs"'


def manifest(install_cmd: str, **fields: object) -> Manifest:
    made = Manifest(contract_version="1.0", name="invented", install_cmd=install_cmd, launch_cmd="exec cat")
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "agents"


async def run(tmp_path: Path, what: Manifest, times: int = 1) -> list[tuple[Mount, ...]]:
    backend = cast("Backend", registry.load("sandboxes", "local", "backend"))
    task = load_task(make_task(tmp_path / "task"))
    jobs = [CatalogAgent(what).install(backend, task, tmp_path / f"log-{number}") for number in range(times)]
    return await asyncio.gather(*jobs)


def directories(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.is_dir())


def test_rollouts_that_start_together_share_one_installation(cache: Path, tmp_path: Path) -> None:
    first, second, third = asyncio.run(run(tmp_path, manifest(COUNTING), times=3))
    assert first == second == third
    (mount,) = first
    assert (mount.target, mount.writable) == ("/opt/benchflow", False)
    assert (mount.source / "agents/invented/runs").read_text() == "run\n"
    assert directories(cache) == [mount.source.name]
    logs = [path.read_text() for path in tmp_path.glob("log-*/install.log")]
    assert logs == ["installing\n"]


def test_an_image_with_a_user_of_its_own_installs_agents_all_the_same(cache: Path, tmp_path: Path) -> None:
    image = make_task(tmp_path / "task") / "environment/Dockerfile"
    image.parent.mkdir()
    image.write_text("FROM debian:12\nUSER nobody\n")
    ((mount,),) = asyncio.run(run(tmp_path, manifest('touch "$HOME/here" /opt/benchflow/there')))
    assert sorted(path.name for path in mount.source.rglob("*here")) == ["here", "there"]
    assert directories(cache) == [mount.source.name]


def test_another_command_is_another_installation(cache: Path, tmp_path: Path) -> None:
    asyncio.run(run(tmp_path, manifest(COUNTING)))
    asyncio.run(run(tmp_path, manifest(COUNTING + " ")))
    assert len(directories(cache)) == 2


def test_a_failed_installation_leaves_nothing_says_why_and_is_not_tried_again(cache: Path, tmp_path: Path) -> None:
    failing = manifest('touch "$BENCHFLOW_AGENT_DIR/half"; echo no such package >&2; exit 4')
    with pytest.raises(AgentError, match=r"(?s)exit code 4; log: .*install\.log; the last lines:\nno such package"):
        asyncio.run(run(tmp_path, failing))
    assert directories(cache) == []
    (tmp_path / "log-0/install.log").unlink()
    with pytest.raises(AgentError, match="no such package"):
        asyncio.run(run(tmp_path, failing))
    assert not (tmp_path / "log-0/install.log").exists()


def test_an_installation_that_takes_too_long_is_ended(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="its install_cmd took over 1 s"):
        asyncio.run(run(tmp_path, manifest("echo begun; sleep 600", install_timeout=1)))
    assert directories(cache) == []


def test_what_a_killed_installation_left_is_replaced(cache: Path, tmp_path: Path) -> None:
    ((mount,),) = asyncio.run(run(tmp_path, manifest(COUNTING)))
    (mount.source / ".complete.json").unlink()
    (cache / f".{mount.source.name}.draft-dead" / "files").mkdir(parents=True)
    assert asyncio.run(run(tmp_path, manifest(COUNTING))) == [(mount,)]
    assert (mount.source / "agents/invented/runs").read_text() == "run\n"
    assert directories(cache) == [mount.source.name]


def test_a_cancelled_installation_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    async def cancelled() -> None:
        work = asyncio.create_task(run(tmp_path, manifest("sleep 600")))
        await asyncio.sleep(1.5)
        assert directories(cache)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(cancelled())
    assert directories(cache) == []


def test_the_installation_sees_where_packages_come_from_and_no_secret(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "invented.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:pass-phrase@index.invalid/simple")
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("OPENAI_API_KEY", "an-invented-key")
    look = f"env | sort; ls {wheels}; ls {wheels}/.. "
    asyncio.run(run(tmp_path, manifest(look)))
    log = (tmp_path / "log-0/install.log").read_text()
    assert f"UV_FIND_LINKS={wheels}\n" in log
    assert "UV_DEFAULT_INDEX=https://***@index.invalid/simple\n" in log
    assert "invented.whl\n" in log
    for hidden in ("pass-phrase", "PIP_TARGET", "an-invented-key", "cache\n"):
        assert hidden not in log
