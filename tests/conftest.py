"""Start a test that waits for minutes first, and share servers: a Docker engine, SSH, a stand-in for Daytona."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import dockerhost, sshhost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.sandboxes.ssh import SshBackend
    from tests.daytonahost import DaytonaHost
    from tests.hubhost import HubHost
    from tests.sshhost import Sshd

# Plugins of others that happen to be installed: one loads trio, another Hypothesis as a session ends, which together
# cost more than the session. Nothing in the sessions that tests start is about them.
LEAN = "-p no:anyio -p no:hypothesispytest"

# How long an example takes is the machine's matter: beside others, or on a busy one, anything may take seconds.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def lean_sessions() -> Iterator[None]:
    """Let sessions that tests start in other processes load no plugin that only this one needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", LEAN)
        yield


@pytest.fixture(scope="session")
def docker_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the DOCKER_HOST of an engine of the tests' own, with an image of this machine's programs."""
    if reason := dockerhost.why_no_dockerd():
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("dockerd")
    dockerd = dockerhost.Dockerd(base / "dockerd.log")
    try:
        if not dockerd.start():
            pytest.skip("dockerd does not start here: " + (base / "dockerd.log").read_text(errors="replace")[-300:])
        dockerhost.import_image(dockerd.address, base, dockerhost.IMAGE, dockerhost.STAND_IN)
        yield dockerd.address
    finally:
        dockerd.remove()


@pytest.fixture(scope="session")
def remote_engine(docker_engine: str) -> Iterator[str]:
    """Yield the same engine's address as it is from another machine: nothing of it may be reached but its interface."""
    door = dockerhost.Door(docker_engine)
    yield door.address
    door.close()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """Return an SSH server of the tests' own."""
    with sshhost.running(tmp_path_factory.mktemp("sshd")) as made:
        yield made


@pytest.fixture(scope="session")
def ssh_backend(sshd: Sshd) -> Iterator[SshBackend]:
    """Return the SSH backend, connected to that server."""
    from pytest_benchflow.sandboxes.ssh import SshBackend

    backend = SshBackend([sshd.address])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(sshd.home))
        assert backend.available() is None
    yield backend
    asyncio.run(backend.close())
    assert sshd.sessions() == []


@pytest.fixture(scope="session")
def plain_backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshBackend]:
    """Return the SSH backend, connected to a server on a machine that cannot isolate anything."""
    pytest.importorskip("paramiko")
    if reason := sshhost.why_no_sshd():
        pytest.skip(reason)
    from pytest_benchflow.sandboxes.ssh import SshBackend

    made = sshhost.Sshd(tmp_path_factory.mktemp("plain"), plain=True)
    made.start()
    backend = SshBackend([made.address])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(made.home))
        with pytest.warns(UserWarning, match="nothing is isolated"):
            assert backend.available() is None
    yield backend
    asyncio.run(backend.close())
    made.stop()


@pytest.fixture(scope="session")
def daytona_server() -> Iterator[DaytonaHost]:
    """Return the stand-in that `daytona` empties for each test."""
    pytest.importorskip("daytona")
    from tests import daytonahost

    if reason := daytonahost.why_not():
        pytest.skip(reason)
    with daytonahost.DaytonaHost() as host:
        yield host


@pytest.fixture
def daytona(daytona_server: DaytonaHost) -> Iterator[DaytonaHost]:
    """Return a stand-in for Daytona with nothing in it; it serves the real client and runs the commands."""
    daytona_server.clear()
    yield daytona_server
    daytona_server.clear()


@pytest.fixture(scope="session")
def hub_server() -> Iterator[HubHost]:
    """Return the stand-in that `hub` empties for each test."""
    from tests.hubhost import HubHost

    with HubHost() as host:
        yield host


@pytest.fixture
def hub(hub_server: HubHost, monkeypatch: pytest.MonkeyPatch) -> HubHost:
    """Return a stand-in for the Hugging Face Hub with nothing in it, to which the client of this process is led."""
    constants = pytest.importorskip("huggingface_hub.constants")
    hub_server.clear()
    monkeypatch.setenv("HF_TOKEN", hub_server.environ["HF_TOKEN"])
    # What the client reads of its environment when it is imported.
    monkeypatch.setattr(constants, "ENDPOINT", hub_server.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return hub_server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "waits: a test that in CI does nothing for minutes but wait.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)
