"""Talk to a Docker engine: where it is, whether it answers, and what its refusals mean to a person."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._docker.dial import USUAL, dial, hang_up, socket_of, tls_of
from pytest_benchflow.sandboxes._labels import MANAGED, OWNER, UNTIL, owner_of
from pytest_benchflow.settings import host_variable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pytest_benchflow.sandboxes._docker.dial import Tls

_PROBE_SEC = 10
_CALL_SEC = 120
_LOOK_SEC = 0.5
_THREADS = 16
_OLDEST = "1.24"  # of the interface; no more than a name until the engine has told its own
_INSTEAD = "or use --benchflow-sandbox=local"
_KINDS = ("unix://", "tcp://", "ssh://")


def engine_address() -> str:
    """Return where the engine is, as DOCKER_HOST says it, without a password: nothing asks for one."""
    address = re.sub(r"(//[^/@:]*):[^/@]*@", r"\1@", host_variable("DOCKER_HOST") or "unix://")
    return address if address != "unix://" else f"unix://{USUAL}"


@functools.cache
def why_no_engine(address: str) -> str | None:
    """Return why no engine can be used there, None when one can; asked once for each address and process."""
    if importlib.util.find_spec("docker") is None:
        return "the docker sandbox needs a package more; pip install 'pytest-benchflow[docker]'"
    where = address.removeprefix("unix://")
    if not address.startswith(_KINDS):
        return f"DOCKER_HOST is {address}; the docker sandbox takes {', '.join(_KINDS)}; set one of them, {_INSTEAD}"
    try:
        kind = _kind_of(address)
    except PermissionError:
        return (
            f"this user may not speak to the Docker engine at {where}; "
            f"run pytest as root or as a member of its group, {_INSTEAD}"
        )
    except (OSError, ValueError) as error:
        why = _why_not_reached(error)
        return f"no Docker engine answers at {where} ({why}); start one or set DOCKER_HOST"
    if kind is None:
        return f"what answers at {where} is no Docker engine; set DOCKER_HOST to one"
    if kind == _TLS_WANTED:
        return (
            f"the Docker engine at {where} wants TLS; set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the directory "
            "of its ca.pem, cert.pem and key.pem"
        )
    return None if kind == "linux" else f"the engine at {where} runs {kind} containers, not linux ones"


_TLS_WANTED = "tls"


def _why_not_reached(error: Exception) -> str:
    reason = getattr(error, "reason", None)  # of TLS, in capitals
    said = getattr(error, "verify_message", None) or getattr(error, "strerror", None) or str(error)
    return f"TLS: {said or reason}" if reason else str(said)


def _kind_of(address: str) -> str | None:
    """Ask an engine which containers it runs; None: what answers is none. Raises: OSError, ValueError."""
    with dial(address) as probe:
        probe.settimeout(_PROBE_SEC)
        probe.sendall(b"GET /version HTTP/1.0\r\nHost: docker\r\n\r\n")
        said = b"".join(iter(lambda: probe.recv(1 << 16), b""))
    if b"HTTP request to an HTTPS server" in said:
        return _TLS_WANTED
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(said.partition(b"\r\n\r\n")[2])["Os"]).lower()
    return None


_engines: dict[str, Engine] = {}
_engines_turn = threading.Lock()


class Engine:
    """One engine; calls run in threads of its own, so that a slow one holds nobody up."""

    def __init__(self, address: str) -> None:
        docker: Any = importlib.import_module("docker")
        self.address = address
        self.name = address.removeprefix("unix://")  # for people
        path, tls = socket_of(address), tls_of(address)
        options = {"base_url": f"unix://{path}" if path else address, "timeout": _CALL_SEC}
        options |= {"tls": _docker_tls(docker, tls)} if tls else {}
        with contextlib.closing(docker.APIClient(version=_OLDEST, **options)) as first:
            # Settings for the web would otherwise choose its proxy and whom it trusts.
            first.trust_env = False
            version = first.version(api_version=False)["ApiVersion"]
        self.api: Any = docker.APIClient(version=version, **options)
        self.api.trust_env = False
        self.errors: tuple[type[Exception], ...] = (docker.errors.DockerException, OSError)
        self._not_found: type[Exception] = docker.errors.NotFound
        self._pool = ThreadPoolExecutor(_THREADS, "docker")
        self._beside: bool | None = None
        self._beside_turn = threading.Lock()

    @staticmethod
    def at(address: str) -> Engine:
        """Return this process's client of the engine at an address. Raises: SandboxError when it does not answer."""
        with _engines_turn:
            if address not in _engines:
                try:
                    dial(address).close()  # the client leaves its socket open where nobody listens
                    _engines[address] = Engine(address)
                except Exception as error:
                    raise SandboxError(f"the Docker engine at {address} does not answer: {error}") from error
            return _engines[address]

    @staticmethod
    def close_all() -> None:
        """Let go of all engines; they are connected to anew when they are asked for."""
        with _engines_turn:
            engines = list(_engines.values())
            _engines.clear()
        for engine in engines:
            engine.api.close()
            engine._pool.shutdown(wait=False)
            hang_up(engine.address)

    @property
    def beside(self) -> bool:
        """Tell whether its containers are processes of this machine that this user may enter; asked once, in a thread.

        Then what they hold is reached directly; otherwise by what the engine offers to anybody.
        """
        with self._beside_turn:
            if self._beside is None:
                self._beside = self._is_beside()
            return self._beside

    def _is_beside(self) -> bool:
        if sys.platform != "linux" or os.getuid() != 0 or not self.address.startswith("unix://"):
            return False
        options = ",".join(self.ask("info").get("SecurityOptions") or ())
        if "userns" in options or "rootless" in options:
            return False
        # A directory of the engine's own is there on its machine only.
        name = f"benchflow-probe-{secrets.token_hex(6)}"
        owner = owner_of("docker")
        # By these the reaper finds one that a kill left.
        marks = {MANAGED: f"1:{owner}", OWNER: owner, UNTIL: str(int(time.time() + _CALL_SEC))}
        made = self.ask("create_volume", name, labels=marks)
        try:
            return Path(str(made.get("Mountpoint") or "/nowhere")).is_dir()
        finally:
            with contextlib.suppress(FileNotFoundError, SandboxError):
                self.ask("remove_volume", name)

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the API client. Raises: FileNotFoundError for what is not there, SandboxError.

        One that is cancelled is waited for, so that what it makes is known to whoever cleans up.
        """
        return await self.work(functools.partial(self.ask, name, *args, **options))

    async def work(self, work: Callable[[], Any]) -> Any:
        """Run something that asks the engine in a thread; one that is cancelled is waited for."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def ask(self, name: str, *args: Any, **options: Any) -> Any:
        """Call a method of the API client in this thread; raises as `call` does."""
        try:
            socket_of(self.address)  # starts ssh again where it has ended
            return getattr(self.api, name)(*args, **options)
        except self._not_found as error:
            raise FileNotFoundError(_first_line(error)) from error
        except self.errors as error:
            self._refuse(error)

    def stat(self, container: str, path: str) -> int | None:
        """Return the mode of what is at `path` in a container, in Go's bits; None: nothing is there."""
        url = f"{self.api.base_url}/v{self.api.api_version}/containers/{container}/archive"
        try:
            answer = self.api.head(url, params={"path": path}, timeout=_CALL_SEC)
        except self.errors as error:
            self._refuse(error)
        told = answer.headers.get("X-Docker-Container-Path-Stat")
        if told is None:
            why = "" if answer.status_code == 404 else self._why_no_stat(url, path)
            if why and "not a directory" not in why:
                raise SandboxError(f"the Docker engine at {self.name} refused to look at {path}: {why}")
            return None
        return int(json.loads(base64.b64decode(told))["mode"])

    def _why_no_stat(self, url: str, path: str) -> str:
        # An answer to HEAD has no body to say it.
        with self.api.get(url, params={"path": path}, timeout=_CALL_SEC, stream=True) as answer:
            return str(answer.json().get("message", answer.reason)) if answer.status_code >= 400 else "it changes"

    def registry_header(self, name: str) -> dict[str, str]:
        """Return what lets the engine pull an image as `docker login` on this machine allows."""
        auth: Any = importlib.import_module("docker.auth")
        header = auth.get_config_header(self.api, auth.resolve_repository_name(name)[0])
        return {"X-Registry-Auth": header.decode() if isinstance(header, bytes) else header} if header else {}

    def progress(
        self, path: str, params: dict[str, Any], headers: dict[str, str], given_up: threading.Event, body: Any = None
    ) -> Generator[dict[str, Any]]:
        """Yield what the engine tells while it works; closed early or given up, it stops. Its refusal is a line too."""
        url = f"{self.api.base_url}/v{self.api.api_version}{path}"
        # No limit on the time between two lines: whoever waits for the whole has one.
        with self.api.post(url, params=params, headers=headers, data=body, stream=True, timeout=None) as answer:
            if answer.status_code >= 400:
                yield {"error": answer.json().get("message", answer.text)}
                return
            with _cut_when(given_up, answer.raw.fileno()):
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
            raise SandboxError(f"the Docker engine at {self.name} does not answer any more: {said}") from error
        raise SandboxError(f"the Docker engine at {self.name} refused: {said}") from error

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
            except self.errors as error:
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


@contextlib.contextmanager
def _cut_when(given_up: threading.Event, descriptor: int) -> Iterator[None]:
    """Shut a connection down when it is given up: a step may say nothing for ever to whoever reads of it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SEC):
            if given_up.is_set():
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return

    with socket.socket(fileno=os.dup(descriptor)) as connection:
        watcher = threading.Thread(target=watch, name="docker-cut", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _docker_tls(docker: Any, tls: Tls) -> Any:
    certificate, key, authority = map(tls.file, ("cert.pem", "key.pem", "ca.pem"))
    pair = (certificate, key) if certificate and key else None
    return docker.tls.TLSConfig(client_cert=pair, ca_cert=authority if tls.verify else None, verify=tls.verify)


def _first_line(error: BaseException) -> str:
    said = str(getattr(error, "explanation", None) or error).strip()
    return said.splitlines()[0][:300] if said else type(error).__name__
