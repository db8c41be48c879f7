"""Run the services of a compose file beside a rollout's own container, on networks without a way out."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._docker.afar import Copies
from pytest_benchflow.sandboxes._docker.image import have_image
from pytest_benchflow.sandboxes._labels import SCRATCH, check_ours, owner_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_benchflow.sandboxes._docker.compose import Compose, Service
    from pytest_benchflow.sandboxes._docker.engine import Engine
    from pytest_benchflow.tasks.task import Task

_LOOK_SEC = 0.2
_LAST_LINES = 8
# No address of the engine's machine on the network, and no name server behind it.
_INSIDE_ONLY = {"com.docker.network.bridge.inhibit_ipv4": "true"}
_NO_NAMES = ["127.0.0.1"]


class Services:
    """All of a compose file but main; everything bears the sandbox's labels and a name made from its own."""

    def __init__(self, engine: Engine, task: Task, compose: Compose, name: str, labels: Mapping[str, str]) -> None:
        self._engine = engine
        self._task = task
        self._compose = compose
        self._name = name
        self._labels = dict(labels)
        # Asked for in so many words: what a task does not say gives nobody the internet here.
        self._public = task.environment.network.mode == "public"

    async def start(self) -> None:
        """Make networks and volumes, then start each service when those it depends on have come that far.

        Raises: SandboxError naming the service, with the end of its log.
        """
        for network in self._compose.networks:
            await self._make_network(network, internal=True)
        if self._public and any(map(self._may_go_out, self._compose.side)):
            await self._make_network("outside", internal=False)
        for volume in self._compose.volumes:
            await self._engine.call("create_volume", self.named(volume), labels=self._labels)
        for service in self._compose.side:
            await self._wait_for(service.depends)
            await self._start(service)
        await self._wait_for(dict.fromkeys((each.name for each in self._compose.side), "service_healthy"))
        await self._wait_for(self._compose.main.depends)

    async def _make_network(self, name: str, *, internal: bool) -> None:
        options = _INSIDE_ONLY if internal else {}
        await self._engine.call(
            "create_network", self.named(name), "bridge", options=options, internal=internal, labels=self._labels
        )

    def _may_go_out(self, service: Service) -> bool:
        return bool(set(service.networks) - self._compose.closed)

    def named(self, name: str) -> str:
        """Return the engine's name for a service, network or volume of the file."""
        return f"{self._name}-{name}"

    def for_main(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return main's configuration with what the file says of it."""
        main = self._compose.main
        merged = {**config, **main.config, "Labels": config["Labels"]}
        if "Healthcheck" not in main.config:
            merged["Healthcheck"] = config["Healthcheck"]
        merged.pop("WorkingDir", None)
        merged["HostConfig"] = {**config["HostConfig"], **main.host, **self._places(main)}
        granted = {*config["HostConfig"]["CapAdd"], *main.host.get("CapAdd", ())}
        dropped = {*config["HostConfig"]["CapDrop"], *main.host.get("CapDrop", ())}
        merged["HostConfig"] |= {"CapAdd": sorted(granted), "CapDrop": sorted(dropped)}
        merged["HostConfig"]["Mounts"] = [*config["HostConfig"]["Mounts"], *self._mounts(main)]
        return merged | self._first_network(main)

    def _places(self, service: Service) -> dict[str, Any]:
        networks = list(service.networks)
        return {"NetworkMode": self.named(networks[0]), "Dns": _NO_NAMES} if networks else {}

    def _first_network(self, service: Service) -> dict[str, Any]:
        for network, names in service.networks.items():
            aliases = {"Aliases": [service.name, *names]}
            return {"NetworkingConfig": {"EndpointsConfig": {self.named(network): aliases}}}
        return {}

    def _mounts(self, service: Service) -> list[dict[str, Any]]:
        return [
            {"Type": "volume", "Source": self.named(name), "Target": target, "ReadOnly": read_only}
            for name, target, read_only in service.volumes
        ]

    async def join(self, service: Service, container: str) -> None:
        """Connect a container that was made to what else its service is connected to, and give it its files."""
        for network, names in list(service.networks.items())[1:]:
            aliases = [service.name, *names]
            await self._engine.call("connect_container_to_network", container, self.named(network), aliases=aliases)
        copies = Copies(self._engine, container)
        for source, target in service.copies:
            await asyncio.to_thread(copies.copy_in, source, target)

    async def _start(self, service: Service) -> None:
        try:
            image = await have_image(self._engine, service.image, self._task.environment.build_timeout_sec)
        except SandboxError as error:
            raise SandboxError(f"the service {service.name}: {error}") from error
        out = self._public and self._may_go_out(service)
        places = self._places(service)
        if out:
            places.pop("Dns")
        config = {
            "Image": str(image["Id"]),
            "Hostname": service.name,
            **service.config,
            "Labels": {**self._labels, "benchflow.service": service.name},
            "HostConfig": {
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
                **service.host,
                **places,
                "Mounts": self._mounts(service),
                "Memory": (service.memory_mb or 0) << 20,
                "NanoCpus": int((service.cpus or 0) * 1e9),
            },
            **self._first_network(service),
        }
        container = self.named(service.name)
        await self._engine.call("create_container_from_config", config, container)
        await self.join(service, container)
        if out:
            await self._engine.call("connect_container_to_network", container, self.named("outside"))
        try:
            await self._engine.call("start", container)
        except SandboxError as error:
            raise SandboxError(f"the service {service.name} cannot be started: {error}") from error

    async def _wait_for(self, wanted: Mapping[str, str]) -> None:
        for name, condition in wanted.items():
            await self.wait_until(self.named(name), f"the service {name}", condition)

    async def wait_until(self, container: str, what: str, condition: str) -> None:
        """Wait until a container is healthy, where it says what that is, or has done its work. Raises: SandboxError."""
        limit = self._task.environment.build_timeout_sec
        try:
            async with asyncio.timeout(limit):
                while True:
                    state = (await self._engine.call("inspect_container", container))["State"]
                    why = _why_not_yet(state, condition)
                    if why is None:
                        return
                    if state["Status"] in ("exited", "dead") or why == "unhealthy":
                        raise SandboxError(f"{what} {await self._ended(container, state, why)}")
                    await asyncio.sleep(_LOOK_SEC)
        except TimeoutError:
            raise SandboxError(f"{what} is not ready after {limit:g} s, which build_timeout_sec allows") from None
        except FileNotFoundError as error:
            raise SandboxError(f"{what} is gone; somebody removed it ({error})") from error

    async def _ended(self, container: str, state: Mapping[str, Any], why: str) -> str:
        said = ""
        with contextlib.suppress(SandboxError):  # main keeps none
            said = (await self._engine.call("logs", container, tail=_LAST_LINES)).decode(errors="backslashreplace")
        probes = (state.get("Health") or {}).get("Log") or [{}]
        how = f"ended with exit code {state['ExitCode']}" if why != "unhealthy" else "is unhealthy"
        last = " ".join(str(probes[-1].get("Output", "")).split())[:300]
        probe = f"; its healthcheck says: {last}" if last else ""
        return f"{how}{probe}; the last lines of its log:\n{said.strip() or '(none)'}"


def _why_not_yet(state: Mapping[str, Any], condition: str) -> str | None:
    """Return None when a container has come as far as a condition asks, otherwise how far it has."""
    status, health = state["Status"], (state.get("Health") or {}).get("Status")
    if status == "exited" and state["ExitCode"] == 0 and condition != "service_started" and health is None:
        return None
    if condition == "service_completed_successfully" or status != "running":
        return str(status)
    if condition == "service_started" or health in (None, "none", "healthy"):
        return None
    return str(health)


def remove_all(engine: Engine, scratch: Path) -> None:
    """Remove every container, volume and network of one sandbox; blocks.

    Raises: SandboxError, also for one that has its labels and another owner's name.
    """
    wanted = {"label": [f"{SCRATCH}={scratch}"]}
    owner = owner_of("docker")

    def ours(found: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        of_it = [each for each in found or () if (each.get("Labels") or {}).get(SCRATCH) == str(scratch)]
        for each in of_it:
            check_ours(each["Labels"], owner)
        return of_it

    for each in ours(engine.ask("containers", all=True, filters=wanted)):
        _gone(engine, "remove_container", each["Id"], v=True, force=True)
    for each in ours(engine.ask("volumes", filters=wanted)["Volumes"]):
        _gone(engine, "remove_volume", each["Name"])
    for each in ours(engine.ask("networks", filters=wanted)):
        _gone(engine, "remove_network", each["Id"])


def _gone(engine: Engine, work: str, name: str, **options: Any) -> None:
    with contextlib.suppress(FileNotFoundError):
        engine.ask(work, name, **options)
