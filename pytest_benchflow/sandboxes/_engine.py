"""Talk to a Docker engine: where it is, whether it answers, and what its refusals mean to a person."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import re
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_USUAL = "/var/run/docker.sock"
_PROBE_SEC = 10
_CALL_SEC = 120
_THREADS = 16
_INSTEAD = "or use --benchflow-sandbox=local"


def engine_address() -> str:
    """Return where the engine is, as DOCKER_HOST says it."""
    return host_variable("DOCKER_HOST") or f"unix://{_USUAL}"


@functools.cache
def why_no_engine(address: str) -> str | None:
    """Return why no engine can be used there, None when one can; asked once for each address and process."""
    if importlib.util.find_spec("docker") is None:
        return "the docker sandbox needs a package more; pip install 'pytest-benchflow[docker]'"
    if not address.startswith("unix://"):
        return (
            f"DOCKER_HOST is {_shown(address)}: an engine on another machine is not supported yet; unset it, {_INSTEAD}"
        )
    path = address.removeprefix("unix://")
    if sys.platform != "linux":
        return f"the docker sandbox needs an engine on this machine, and Linux; {_INSTEAD.removeprefix('or ')}"
    try:
        kind = _kind_of(path)
    except PermissionError:
        return f"this user may not speak to the Docker engine at {path}; run pytest as root, {_INSTEAD}"
    except OSError as error:
        return f"no Docker engine answers at {path} ({error.strerror or error}); start one or set DOCKER_HOST"
    if os.getuid() != 0:
        return (
            "the docker sandbox needs pytest to run as root for now: it enters a container's network and files "
            f"beside the engine; run it with sudo, {_INSTEAD}"
        )
    if kind is None:
        return f"what answers at {path} is no Docker engine; set DOCKER_HOST to one"
    return None if kind == "linux" else f"the engine at {path} runs {kind} containers, not linux ones"


def _kind_of(path: str) -> str | None:
    """Ask an engine which containers it runs; None: what answers is none. Raises: OSError."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SEC)
        probe.connect(path)
        probe.sendall(b"GET /version HTTP/1.0\r\nHost: docker\r\n\r\n")
        said = b"".join(iter(lambda: probe.recv(1 << 16), b""))
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(said.partition(b"\r\n\r\n")[2])["Os"]).lower()
    return None


def _shown(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", address)


class Engine:
    """One engine; calls run in threads of its own, so that a slow one holds nobody up."""

    def __init__(self, address: str) -> None:
        docker: Any = importlib.import_module("docker")
        self.socket = address.removeprefix("unix://")
        self.api: Any = docker.APIClient(base_url=address, version="auto", timeout=_CALL_SEC)
        self._errors: tuple[type[Exception], ...] = (docker.errors.DockerException, OSError)
        self._not_found: type[Exception] = docker.errors.NotFound
        self._pool = ThreadPoolExecutor(_THREADS, "docker")

    @staticmethod
    @functools.cache
    def at(address: str) -> Engine:
        """Return this process's client of the engine at an address."""
        return Engine(address)

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the API client. Raises: FileNotFoundError for what is not there, SandboxError.

        One that is cancelled is waited for, so that what it makes is known to whoever cleans up.
        """
        work = functools.partial(self.ask, name, *args, **options)
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def ask(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the API client in this thread; raises as `call` does."""
        try:
            return getattr(self.api, name)(*args, **options)
        except self._not_found as error:
            raise FileNotFoundError(_first_line(error)) from error
        except self._errors as error:
            self._refuse(error)

    def registry_header(self, name: str) -> dict[str, str]:
        """Return what lets the engine pull an image as `docker login` on this machine allows."""
        auth: Any = importlib.import_module("docker.auth")
        header = auth.get_config_header(self.api, auth.resolve_repository_name(name)[0])
        return {"X-Registry-Auth": header.decode() if isinstance(header, bytes) else header} if header else {}

    def progress(
        self, path: str, params: dict[str, Any], headers: dict[str, str], body: Any = None
    ) -> Generator[dict[str, Any]]:
        """Yield what the engine tells while it works; closed early, the engine stops. Its refusal is a line as well."""
        url = f"{self.api.base_url}/v{self.api.api_version}{path}"
        # No limit on the time between two lines: whoever waits for the whole has one.
        with self.api.post(url, params=params, headers=headers, data=body, stream=True, timeout=None) as answer:
            if answer.status_code >= 400:
                yield {"error": answer.json().get("message", answer.text)}
                return
            for line in answer.iter_lines():
                if line:
                    yield json.loads(line)

    def _refuse(self, error: Exception) -> NoReturn:
        said = _first_line(error)
        if "no space left" in said.lower():
            raise SandboxError(
                f"the Docker engine's disk is full; `docker system prune` makes room (it said: {said})"
            ) from error
        if not hasattr(error, "explanation"):
            raise SandboxError(f"the Docker engine at {self.socket} does not answer any more: {said}") from error
        raise SandboxError(f"the Docker engine at {self.socket} refused: {said}") from error

    async def long(self, work: Callable[[threading.Event], Any], limit: float, what: str) -> Any:
        """Run a pull or a build in a thread; `work` looks now and then whether the event tells it to give up.

        Raises: SandboxError when it takes over `limit` seconds.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        given_up = threading.Event()

        def settle(value: Any, error: BaseException | None) -> None:
            if not done.done():
                if error is None:
                    done.set_result(value)
                else:
                    done.set_exception(error)

        def run() -> None:
            value, failure = None, None
            try:
                value = work(given_up)
            except self._not_found as error:
                failure = SandboxError(_first_line(error))
            except self._errors as error:
                failure = SandboxError(_first_line(error))
            except BaseException as error:
                failure = error  # type: ignore[assignment]
            if not given_up.is_set():
                loop.call_soon_threadsafe(settle, value, failure)

        # Not of the pool: a process that ends does not wait for it, and the engine stops when nobody listens.
        threading.Thread(target=run, name="docker-long", daemon=True).start()
        try:
            async with asyncio.timeout(limit):
                return await done
        except TimeoutError:
            raise SandboxError(f"{what} took over {limit:g} s") from None
        finally:
            given_up.set()


def _first_line(error: BaseException) -> str:
    said = str(getattr(error, "explanation", None) or error).strip()
    return said.splitlines()[0][:300] if said else type(error).__name__
