"""Start a test that waits for minutes first, and one Docker engine for all tests that need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import dockerhost

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "waits: a test that in CI does nothing for minutes but wait.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)
