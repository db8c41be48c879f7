"""Read a task's compose file: what of it containers can be made from, and in one sentence what not."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import TaskError, UnsupportedError
from pytest_benchflow.sandboxes._docker.compose_values import (
    as_bytes,
    as_list,
    as_mapping,
    as_nanoseconds,
    as_pairs,
    as_words,
    check_size,
    interpolate,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_benchflow.tasks.task import Task

MAIN = "main"
DEFAULT_NETWORK = "default"
# Nothing of these is asked for in a container that only other containers of its rollout can see.
_WITHOUT_MEANING = frozenset(
    (
        *("container_name", "restart", "ports", "expose", "labels", "annotations", "logging", "stdin_open", "tty"),
        *("stop_signal", "stop_grace_period", "pull_policy", "platform", "attach", "mem_reservation", "profiles"),
    )
)
# Rights over a container's own processes and network; none of them reaches its host.
_GRANTED = frozenset(
    (
        *("SYS_PTRACE", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "SYS_NICE", "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE"),
        *("FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
_KNOWN = ("version", "name", "services", "networks", "volumes")
_IDLE = re.compile(r"((/\w+)*/?(ba)?sh( -\w+)* ?)?(exec )?((sleep|tail) [\w -]*(/dev/null)?)?")
# What public harnesses fill in; the directories for logs are there in every sandbox of ours.
_LOGS = re.compile(r"\$\{?HOST_\w*(LOGS|ARTIFACTS)_PATH")
_CONDITIONS = ("service_started", "service_healthy", "service_completed_successfully")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is built from; paths are absolute."""

    dockerfile: Path
    context: Path
    args: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """One service; `config` and `host` are parts of what an engine is asked to make, in its own words."""

    name: str
    image: Recipe | str | None  # None: of main only, which then has the task's own
    config: Mapping[str, Any]
    host: Mapping[str, Any]
    depends: Mapping[str, str]  # service -> what it must have come to
    networks: Mapping[str, tuple[str, ...]]  # network -> names there beside the service's own
    copies: tuple[tuple[Path, str], ...] = ()  # files of the task's -> where they are wanted
    volumes: tuple[tuple[str, str, bool], ...] = ()  # name, where, read-only
    memory_mb: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class Compose:
    """A whole file; side services come in the order in which they are started."""

    main: Service
    side: tuple[Service, ...]
    networks: tuple[str, ...]
    closed: frozenset[str]  # networks that the file itself keeps from the internet
    volumes: tuple[str, ...]


def read_compose(task: Task, values: Mapping[str, str] | None = None) -> Compose:
    """Read the compose file of a task that has one; `values` are those of variables it may name.

    Raises: UnsupportedError naming the key that is not understood, TaskError.
    """
    import yaml

    assert task.compose_file is not None
    if values is None:
        values = {name: "" if "$" in said else said for name, said in task.environment.env.items()}
    try:
        document = yaml.safe_load(task.compose_file.read_text("utf-8"))
        check_size(document)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise TaskError(f"{task.compose_file} cannot be read: {' '.join(str(error).split())}") from error
    return _File(task, task.compose_file, {**_harness_values(task), **values}).read(document)


def _harness_values(task: Task) -> dict[str, str]:
    environment = task.environment
    return {
        "CONTEXT_DIR": ".",
        "MAIN_IMAGE_NAME": "",
        "PREBUILT_IMAGE_NAME": environment.docker_image or "",
        "TEST_DIR": task.tests_target,
        "ENV_VERIFIER_LOGS_PATH": "/logs/verifier",
        "ENV_AGENT_LOGS_PATH": "/logs/agent",
        "ENV_ARTIFACTS_PATH": "/logs/artifacts",
        "CPUS": f"{environment.cpus:g}" if environment.cpus else "",
        "MEMORY": f"{environment.memory_mb}M" if environment.memory_mb else "",
    }


class _File:
    def __init__(self, task: Task, path: Path, values: Mapping[str, str]) -> None:
        self._task = task
        self._path = path
        self.values = values

    def refuse(self, key: str, why: str = "which the docker sandbox does not know") -> UnsupportedError:
        return UnsupportedError(f"needs {key} of {self._path.name}, {why}")

    def read(self, document: Any) -> Compose:
        try:
            known = as_mapping(document, "the file")
            for key, value in known.items():
                if value and key not in _KNOWN and not key.startswith("x-"):
                    raise self.refuse(key)
            services = as_mapping(known.get("services"), "services")
            networks = as_mapping(known.get("networks") or {}, "networks")
            closed = frozenset(name for name, value in networks.items() if self._network(name, value))
            volumes = as_mapping(known.get("volumes") or {}, "volumes")
            for name, value in volumes.items():
                self._volume(name, value)
            named = frozenset(volumes)
            found = {
                name: self._service(name, as_mapping(value or {}, name), named)
                for name, value in services.items()
                if name == MAIN or not (value or {}).get("profiles")
            }
        except (ValueError, TypeError, KeyError) as error:
            raise TaskError(f"{self._path}: {error}") from error
        main = found.pop(MAIN, None) or self._service(MAIN, {}, named)
        used = {network for each in (main, *found.values()) for network in each.networks}
        if unknown := sorted(used - {*networks, DEFAULT_NETWORK}):
            raise TaskError(f"{self._path}: the network {unknown[0]} is not declared")
        return Compose(main, self._ordered(found), tuple(sorted(used)), closed, tuple(sorted(volumes)))

    def _network(self, name: str, value: Any) -> bool:
        known = as_mapping(value or {}, f"networks.{name}")
        for key, said in known.items():
            if key not in ("internal", "name", "attachable", "labels", "enable_ipv6") and not (
                key == "driver" and said == "bridge"
            ):
                raise self.refuse(f"networks.{name}.{key}")
        return bool(known.get("internal"))

    def _volume(self, name: str, value: Any) -> None:
        for key, said in as_mapping(value or {}, f"volumes.{name}").items():
            if key not in ("name", "labels") and not (key == "driver" and said == "local"):
                raise self.refuse(f"volumes.{name}.{key}")

    def _ordered(self, services: dict[str, Service]) -> tuple[Service, ...]:
        """Return services so that each comes after those it depends on. Raises: TaskError."""
        ordered: list[Service] = []
        left = dict(services)
        while left:
            ready = [each for each in left.values() if not set(each.depends) & set(left)]
            if not ready:
                raise TaskError(f"{self._path}: {', '.join(sorted(left))} depend on each other")
            for each in ready:
                if strange := [name for name in each.depends if name not in services]:
                    what = f"services.{each.name}.depends_on.{strange[0]}"
                    raise self.refuse(what, "which is started last here" if strange[0] == MAIN else "which it has not")
                ordered.append(left.pop(each.name))
        return tuple(ordered)

    def _service(self, name: str, raw: Mapping[str, Any], volumes: frozenset[str]) -> Service:
        made = _Made(self, name, self._task, volumes)
        for key, value in raw.items():
            if key in _WITHOUT_MEANING or key.startswith("x-") or value is None:
                continue
            # A path of the host for logs is one that every sandbox has anyway.
            kept = [each for each in as_list(value, key) if not _is_for_logs(each)] if key == "volumes" else value
            made.take(key, interpolate(kept, self.values, functools.partial(self._unset, name, key)))
        return made.service(raw)

    def _unset(self, service: str, key: str, variable: str) -> UnsupportedError:
        return self.refuse(f"services.{service}.{key}", f"which names the variable {variable}; give it in task.toml")

    def inside(self, text: str) -> Path:
        """Return a path of the task's environment. Raises: UnsupportedError for one outside it."""
        top = self._path.parent.resolve()
        path = (top / text).resolve()
        if text.startswith("~") or not path.is_relative_to(top):
            raise self.refuse(text, "a path of the host, which no sandbox gets")
        return path


def _is_for_logs(volume: Any) -> bool:
    return bool(_LOGS.match(str(volume.get("source") if isinstance(volume, dict) else volume)))


class _Made:
    """A service in the making: `take` is called for each key."""

    def __init__(self, file: _File, name: str, task: Task, volumes: frozenset[str]) -> None:
        self._file = file
        self._name = name
        self._task = task
        self._named = volumes
        self._image: Recipe | str | None = None
        self._config: dict[str, Any] = {}
        self._host: dict[str, Any] = {}
        self._env: dict[str, str] = {}
        self._depends: dict[str, str] = {}
        self._networks: dict[str, tuple[str, ...]] = {}
        self._copies: list[tuple[Path, str]] = []
        self._volumes: list[tuple[str, str, bool]] = []
        self._tmpfs: dict[str, str] = {}
        self._memory: int | None = None
        self._cpus: float | None = None

    def refuse(self, key: str, why: str = "which the docker sandbox does not know") -> UnsupportedError:
        return self._file.refuse(f"services.{self._name}.{key}", why)

    def take(self, key: str, value: Any) -> None:
        work = getattr(self, f"_take_{key}", None)
        if work is None:
            raise self.refuse(key)
        work(value)

    def service(self, raw: Mapping[str, Any]) -> Service:
        if self._image is None and self._name != MAIN:
            raise ValueError(f"services.{self._name} has neither image nor build")
        aliases = tuple(str(raw[key]) for key in ("container_name",) if raw.get(key))
        networks = self._networks or ({} if self._host.get("NetworkMode") else {DEFAULT_NETWORK: ()})
        if self._env:
            self._config["Env"] = [f"{key}={value}" for key, value in self._env.items()]
        if self._tmpfs:
            self._host["Tmpfs"] = self._tmpfs
        return Service(
            name=self._name,
            image=self._image,
            config=self._config,
            host=self._host,
            depends=self._depends,
            networks={network: (*names, *aliases) for network, names in networks.items()},
            copies=tuple(self._copies),
            volumes=tuple(self._volumes),
            memory_mb=self._memory,
            cpus=self._cpus,
        )

    def _take_image(self, value: Any) -> None:
        if self._image is None and value:
            self._image = str(value)

    def _take_build(self, value: Any) -> None:
        known = {"context": value} if isinstance(value, str) else as_mapping(value, "build")
        for key in known:
            if key not in ("context", "dockerfile", "args", "target", "labels", "tags", "platforms", "cache_from"):
                raise self.refuse(f"build.{key}")
        context = self._file.inside(str(known.get("context", ".")))
        dockerfile = (context / str(known.get("dockerfile", "Dockerfile"))).resolve()
        if not dockerfile.is_file():
            raise ValueError(f"services.{self._name}.build: {dockerfile} is not there")
        args = {key: value for key, value in as_pairs(known.get("args") or {}, "args").items() if value is not None}
        self._image = Recipe(dockerfile, context, args, known.get("target"))

    def _take_environment(self, value: Any) -> None:
        for key, said in as_pairs(value, "environment").items():
            # A name alone stands for a value of whoever starts it.
            found = self._file.values.get(key) if said is None else said
            if found is not None:
                self._env[key] = found

    def _take_env_file(self, value: Any) -> None:
        for each in [value] if isinstance(value, str | dict) else as_list(value, "env_file"):
            path = self._file.inside(str(each["path"] if isinstance(each, dict) else each))
            try:
                lines = path.read_text("utf-8").splitlines()
            except OSError as error:
                raise ValueError(f"services.{self._name}.env_file: {path}: {error.strerror}") from error
            for line in lines:
                key, found, said = line.partition("=")
                if found and not line.lstrip().startswith("#"):
                    said = said.strip()
                    quoted = len(said) > 1 and said[0] == said[-1] and said[0] in "'\""
                    self._env.setdefault(key.removeprefix("export ").strip(), said[1:-1] if quoted else said)

    def _take_command(self, value: Any) -> None:
        self._program("Cmd", "command", value)

    def _take_entrypoint(self, value: Any) -> None:
        self._program("Entrypoint", "entrypoint", value)

    def _program(self, name: str, key: str, value: Any) -> None:
        words = as_words(value, key)
        if self._name != MAIN:
            self._config[name] = words
        elif not _IDLE.fullmatch(" ".join(words)):
            raise self.refuse(key, "and main does nothing here but wait for the agent's commands")

    def _take_user(self, value: Any) -> None:
        self._config["User"] = str(value)

    def _take_working_dir(self, value: Any) -> None:
        self._config["WorkingDir"] = str(value)

    def _take_hostname(self, value: Any) -> None:
        self._config["Hostname"] = str(value)

    def _take_healthcheck(self, value: Any) -> None:
        known = as_mapping(value, "healthcheck")
        if known.get("disable"):
            self._config["Healthcheck"] = {"Test": ["NONE"]}
            return
        check: dict[str, Any] = {}
        for key, said in known.items():
            if key == "test":
                check["Test"] = ["CMD-SHELL", said] if isinstance(said, str) else as_words(said, "healthcheck.test")
            elif key in ("interval", "timeout", "start_period"):
                check["".join(part.title() for part in key.split("_"))] = as_nanoseconds(said, f"healthcheck.{key}")
            elif key == "retries":
                check["Retries"] = int(said)
            elif key not in ("disable", "start_interval"):
                raise self.refuse(f"healthcheck.{key}")
        self._config["Healthcheck"] = check

    def _take_depends_on(self, value: Any) -> None:
        plain = isinstance(value, list)
        for name, said in (dict.fromkeys(value) if plain else as_mapping(value, "depends_on")).items():
            condition = str((said or {}).get("condition", _CONDITIONS[0]))
            if condition not in _CONDITIONS:
                raise self.refuse(f"depends_on.{name}.condition={condition}")
            self._depends[str(name)] = condition

    def _take_networks(self, value: Any) -> None:
        plain = isinstance(value, list)
        for name, said in (dict.fromkeys(value) if plain else as_mapping(value, "networks")).items():
            known = as_mapping(said or {}, f"networks.{name}")
            for key in known:
                if key not in ("aliases", "priority"):
                    raise self.refuse(f"networks.{name}.{key}")
            self._networks[str(name)] = tuple(map(str, known.get("aliases") or ()))

    def _take_network_mode(self, value: Any) -> None:
        if value not in ("none", "bridge"):
            raise self.refuse(f"network_mode={value}", "a network that is not the rollout's own")
        if value == "none" and self._name != MAIN:
            self._host["NetworkMode"] = "none"

    def _take_links(self, value: Any) -> None:
        if strange := [each for each in as_list(value, "links") if ":" in str(each)]:
            raise self.refuse(f"links={strange[0]}")
        for each in value:
            self._depends.setdefault(str(each), _CONDITIONS[0])

    def _take_volumes(self, value: Any) -> None:
        for each in value:
            if isinstance(each, dict):
                kind, source, target = (each.get(key) for key in ("type", "source", "target"))
                if unknown := sorted(set(each) - {"type", "source", "target", "read_only", "bind", "volume", "tmpfs"}):
                    raise self.refuse(f"volumes.{unknown[0]}")
                if kind == "tmpfs":
                    self._tmpfs[str(target)] = ""
                    continue
                self._one_volume(source, str(target), read_only=bool(each.get("read_only")))
            else:
                parts = str(each).split(":")
                source, target = (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])
                self._one_volume(source, target, read_only="ro" in ",".join(parts[2:]).split(","))

    def _one_volume(self, source: str | None, target: str, *, read_only: bool) -> None:
        if source in self._named:
            self._volumes.append((str(source), target, read_only))
        elif source is None:
            self._config.setdefault("Volumes", {})[target] = {}
        elif source.startswith((".", "/", "~")):
            path = self._file.inside(source)
            if not path.exists():
                raise ValueError(f"services.{self._name}.volumes: {path} is not there")
            self._copies.append((path, target))
        else:
            raise ValueError(f"services.{self._name}.volumes: the volume {source} is not declared")

    def _take_tmpfs(self, value: Any) -> None:
        for each in [value] if isinstance(value, str) else as_list(value, "tmpfs"):
            place, _, options = str(each).partition(":")
            self._tmpfs[place] = options

    def _take_cap_add(self, value: Any) -> None:
        names = [str(each).upper().removeprefix("CAP_") for each in as_list(value, "cap_add")]
        if strange := [name for name in names if name not in _GRANTED]:
            raise self.refuse(f"cap_add={strange[0]}", "a right over the engine's machine")
        self._host["CapAdd"] = names

    def _take_cap_drop(self, value: Any) -> None:
        self._host["CapDrop"] = [str(each) for each in as_list(value, "cap_drop")]

    def _take_privileged(self, value: Any) -> None:
        if value:
            raise self.refuse("privileged", "a right over the engine's machine")

    def _take_security_opt(self, value: Any) -> None:
        for each in as_list(value, "security_opt"):
            if not str(each).startswith("no-new-privileges"):
                raise self.refuse(f"security_opt={each}", "a right over the engine's machine")
        self._host["SecurityOpt"] = ["no-new-privileges"] if value else []

    def _take_init(self, value: Any) -> None:
        if self._name != MAIN:  # whose process 1 is ours
            self._host["Init"] = bool(value)

    def _take_read_only(self, value: Any) -> None:
        if value and self._name == MAIN:
            raise self.refuse("read_only", "and an agent has to write")
        self._host["ReadonlyRootfs"] = bool(value)

    def _take_shm_size(self, value: Any) -> None:
        self._host["ShmSize"] = as_bytes(value, "shm_size")

    def _take_pids_limit(self, value: Any) -> None:
        if self._name != MAIN:
            self._host["PidsLimit"] = int(value)

    def _take_mem_limit(self, value: Any) -> None:
        if value:
            self._memory = max(1, as_bytes(value, "mem_limit") >> 20)

    def _take_cpus(self, value: Any) -> None:
        if value:
            self._cpus = float(value)

    def _take_deploy(self, value: Any) -> None:
        known = as_mapping(value, "deploy")
        for key, said in known.items():
            if key == "replicas" and said in (1, "1"):
                continue
            if key == "resources":
                resources = as_mapping(said, "deploy.resources")
                limits = as_mapping(resources.get("limits") or {}, "deploy.resources.limits")
                if devices := (resources.get("reservations") or {}).get("devices"):
                    raise self.refuse("deploy.resources.reservations.devices", f"a device of the host: {devices}")
                self._take_mem_limit(limits.get("memory"))
                self._take_cpus(limits.get("cpus"))
            elif key not in ("restart_policy", "labels"):
                raise self.refuse(f"deploy.{key}")

    def _take_extra_hosts(self, value: Any) -> None:
        pairs = value if isinstance(value, dict) else dict(str(each).replace("=", ":").split(":", 1) for each in value)
        if strange := [name for name, address in pairs.items() if "host-gateway" in str(address)]:
            raise self.refuse(f"extra_hosts={strange[0]}", "the host itself, which no sandbox reaches")
        self._host["ExtraHosts"] = [f"{name}:{address}" for name, address in pairs.items()]

    def _take_ulimits(self, value: Any) -> None:
        made = []
        for name, said in as_mapping(value, "ulimits").items():
            soft, hard = (said["soft"], said["hard"]) if isinstance(said, dict) else (said, said)
            made.append({"Name": name, "Soft": int(soft), "Hard": int(hard)})
        self._host["Ulimits"] = made

    def _take_sysctls(self, value: Any) -> None:
        self._host["Sysctls"] = {key: str(said) for key, said in as_pairs(value, "sysctls").items()}
