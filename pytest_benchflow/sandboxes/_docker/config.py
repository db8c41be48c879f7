"""Say to an engine what container a rollout needs."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from pytest_benchflow.sandboxes._labels import labels_for, owner_of
from pytest_benchflow.sandboxes._local.limits import MAX_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_benchflow.contracts import SandboxSpec
    from pytest_benchflow.tasks.task import Environment, Task

# A shell as process 1 takes the orphans in, and is ended from outside.
_IDLE = "while :; do sleep 86400; done"


def workdir_of(task: Task, of_image: str) -> str:
    """Return the working directory: a Dockerfile's own wins over what the task says, which wins over an image's."""
    asked = task.environment.workdir or ""
    first, second = (of_image, asked) if task.dockerfile is not None else (asked, of_image)
    return posixpath.normpath(posixpath.join("/", first or second or "/app"))


def _asked_image(task: Task) -> str | None:
    return task.environment.docker_image if task.dockerfile is None else task.dockerfile.name


def container_config(
    spec: SandboxSpec,
    image: str,
    name: str,
    engine: Mapping[str, Any],
    limits: dict[str, Any],
    *,
    beside: bool,
) -> dict[str, Any]:
    """Return what the engine is asked to make; each limit is noted in `limits` with what became of it."""
    limits["image"] = {"asked": _asked_image(spec.task), "applied": image}
    return {
        "Image": image,
        "Hostname": re.sub(r"[^A-Za-z0-9]+", "-", spec.id)[:63].strip("-") or "sandbox",
        # Its own start-up would be a program of the task's that no phase knows of.
        "Entrypoint": ["/bin/sh", "-c", _IDLE, name],
        "Cmd": [],
        "WorkingDir": "/",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": labels_for(spec, owner_of("docker")),
        "NetworkDisabled": False,
        "HostConfig": {
            "NetworkMode": "none",
            # The host opens what it finds in there, and a device node is opened past the container's own limits.
            "CapDrop": ["MKNOD"],
            # From afar, root in there kills what other users run, and has to know what that is.
            "CapAdd": [] if beside else ["SYS_PTRACE"],
            "LogConfig": {"Type": "none"},
            "Mounts": [
                {
                    "Type": "volume" if each.there else "bind",
                    "Source": str(each.source),
                    "Target": each.target,
                    "ReadOnly": not each.writable,
                }
                for each in spec.mounts
                if beside or each.there
            ],
            **_gpus(spec.task.environment.gpus),
            **_limited(spec.task.environment, engine, limits),
        },
    }


def _gpus(count: int) -> dict[str, Any]:
    return {"DeviceRequests": [{"Driver": "nvidia", "Count": count, "Capabilities": [["gpu"]]}]} if count else {}


def _limited(environment: Environment, engine: Mapping[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
    applied: dict[str, Any] = {}

    def ask(key: str, asked: float | None, able: str, options: dict[str, Any]) -> None:
        if asked is not None:
            known = bool(engine.get(able))
            applied.update(options if known else {})
            how = "control group" if known else "nothing: this engine cannot"
            limits[key] = {"asked": asked, "applied": how}
            if not known and key != "processes":
                limits[key]["warning"] = f"the task asks for {key}, which this Docker engine does not hold"

    memory = (environment.memory_mb or 0) << 20
    ask("memory_mb", environment.memory_mb, "MemoryLimit", {"Memory": memory, "MemorySwap": memory})
    # An engine refuses more processors than it has.
    cpus = min(environment.cpus or 0, float(engine.get("NCPU") or 1))
    ask("cpus", environment.cpus, "CpuCfsQuota", {"NanoCpus": int(cpus * 1e9)})
    if cpus < (environment.cpus or 0):
        limits["cpus"]["warning"] = f"the task asks for {environment.cpus:g} processors; the Docker engine has {cpus:g}"
    ask("processes", MAX_PROCESSES, "PidsLimit", {"PidsLimit": MAX_PROCESSES})
    if environment.storage_mb is not None:
        limits["storage_mb"] = {"asked": environment.storage_mb, "applied": "nothing: the engine's disk is shared"}
    return applied
