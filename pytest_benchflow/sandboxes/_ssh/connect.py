"""Connect to a machine as `ssh` would: its configuration, its keys and agent, its known hosts."""

from __future__ import annotations

import contextlib
import getpass
import importlib
import logging
import shlex
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_benchflow.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.sandboxes._ssh.hosts import SshHost

_CONNECT_SEC = 20.0
_KEEPALIVE_SEC = 15
_UNANSWERED_MS = 60_000  # sent data may stay unacknowledged for so long before the connection counts as broken
_MOST_JUMPS = 8
_NOTHING_TO_SHOW = "No authentication methods available"  # paramiko has no class of its own for it


def _paramiko() -> Any:
    # Imported here: it costs a third of a second, and has no types.
    module = importlib.import_module("paramiko")
    # What it would print, with its own traceback, is said by the errors raised here.
    logging.getLogger("paramiko").addHandler(logging.NullHandler())
    return module


class LoginError(SandboxError):
    """A host that was reached, but not entered: trying again will not help."""


@dataclass(slots=True)
class Login:
    """How to get to one machine, as ssh's configuration says."""

    host: SshHost
    name: str
    port: int
    user: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def known_as(self) -> str:
        """Return the name that known_hosts has it by."""
        name = str(self.options.get("hostkeyalias", self.name))
        return name if self.port == 22 or "hostkeyalias" in self.options else f"[{name}]:{self.port}"

    def files(self, key: str, usual: Sequence[str]) -> list[Path]:
        """Return the files that an option names, or the usual ones."""
        named = self.options.get(key, list(usual))
        words = named if isinstance(named, list) else shlex.split(named)
        return [Path(word).expanduser() for word in words if word.lower() != "none"]


def read_login(host: SshHost) -> Login:
    """Look a host up in ~/.ssh/config and /etc/ssh/ssh_config. Raises: LoginError when they cannot be read."""
    paramiko = _paramiko()
    config = paramiko.SSHConfig()
    for path in (Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")):
        if path.is_file():
            try:
                with path.open() as text:
                    config.parse(text)
            except (OSError, paramiko.SSHException) as error:
                raise LoginError(f"{path} cannot be read: {error}") from error
    try:
        found = dict(config.lookup(host.name))
    except (ImportError, paramiko.SSHException) as error:
        raise LoginError(f"ssh's configuration for {host.name} cannot be used: {error}") from error
    port = host.port or int(found.get("port", 22))
    user = host.user or str(found.get("user", getpass.getuser()))
    return Login(host, str(found.get("hostname", host.name)), port, user, found)


def connect(host: SshHost, jumps: int = 0) -> Any:
    """Return a connected paramiko.SSHClient. Raises: LoginError, SandboxError when it cannot be reached."""
    paramiko = _paramiko()
    login = read_login(host)
    client = paramiko.SSHClient()
    try:
        known = _trust(client, login)
        way = _way(login, jumps)
        agent = str(login.options.get("identitiesonly", "no")).lower() != "yes"
        identities = [str(path) for path in login.files("identityfile", ()) if path.is_file()]
        client.connect(
            known,
            username=login.user,
            sock=way,
            key_filename=identities or None,
            look_for_keys=not identities,
            allow_agent=agent,
            timeout=_CONNECT_SEC,
            banner_timeout=_CONNECT_SEC,
            auth_timeout=_CONNECT_SEC,
        )
    except paramiko.BadHostKeyException as error:
        client.close()
        raise LoginError(_changed(login, error)) from error
    except paramiko.AuthenticationException as error:
        client.close()
        raise LoginError(_refused(login, str(error))) from error
    except (paramiko.SSHException, OSError, EOFError) as error:
        client.close()
        if isinstance(error, LoginError | SandboxError):
            raise
        if str(error) == _NOTHING_TO_SHOW:
            raise LoginError(_refused(login, "there is no key to log in with")) from error
        raise SandboxError(f"{host} ({login.name}, port {login.port}) cannot be reached: {error}") from error
    transport = client.get_transport()
    assert transport is not None
    transport.set_keepalive(_KEEPALIVE_SEC)
    return client


def _trust(client: Any, login: Login) -> str:
    """Make a client believe the host keys that ssh believes, and return the name that it knows the host by."""
    paramiko = _paramiko()
    usual = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
    files = login.files("userknownhostsfile", usual)
    for path in (*files, *login.files("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts",))):
        if path.is_file():
            with contextlib.suppress(OSError):
                client.load_system_host_keys(str(path))
    wanted = str(login.options.get("stricthostkeychecking", "ask")).lower()

    class Unknown(paramiko.MissingHostKeyPolicy):  # type: ignore[misc, name-defined]
        def missing_host_key(self, _client: Any, name: str, key: Any) -> None:
            if wanted in ("accept-new", "no", "off"):
                _remember(files, name, key)
                return
            raise LoginError(
                f"the host key of {login.host} is not known ({key.get_name()} {key.fingerprint}); see that it is "
                f"right, and let ssh remember it: ssh {_command(login)}"
            )

    client.set_missing_host_key_policy(Unknown())
    return login.known_as


def _remember(files: Sequence[Path], name: str, key: Any) -> None:
    if files:
        files[0].parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files[0].open("a") as known:
            known.write(f"{name} {key.get_name()} {key.get_base64()}\n")


def _refused(login: Login, why: str) -> str:
    return (
        f"{login.host} does not let {login.user} in: {why}; `ssh {_command(login)}` must work without a question, by a "
        "key of ssh-agent or of ~/.ssh"
    )


def _changed(login: Login, error: Any) -> str:
    return (
        f"the host key of {login.host} has changed: {error.key.get_name()} {error.key.fingerprint} came, known is "
        f"{error.expected_key.get_name()} {error.expected_key.fingerprint}. Somebody may be in between. If the machine "
        f"was set up anew, forget the old key: ssh-keygen -R {shlex.quote(login.known_as)}"
    )


def _command(login: Login) -> str:
    return (f"-p {login.port} " if login.host.port else "") + (
        f"{login.host.user}@{login.host.name}" if login.host.user else login.host.name
    )


def _way(login: Login, jumps: int) -> Any:
    """Return what bytes go over: a socket without delay, a command, or a channel of a machine on the way."""
    from pytest_benchflow.sandboxes._ssh.hosts import read_host

    jump, command = login.options.get("proxyjump"), login.options.get("proxycommand")
    if jump and str(jump).lower() != "none":
        if jumps >= _MOST_JUMPS:
            raise LoginError(f"{login.host}: more than {_MOST_JUMPS} machines on the way (ProxyJump)")
        *before, last = str(jump).split(",")
        if before:
            raise LoginError(f"{login.host}: ProxyJump over several machines; give {last} a ProxyJump of its own")
        inner = connect(read_host(last.strip()), jumps + 1)
        channel = inner.get_transport().open_channel("direct-tcpip", (login.name, login.port), ("", 0))
        channel.jump = inner  # lives as long as what goes over it
        return channel
    if command and str(command).lower() != "none":
        return _carried_by(str(command))
    raw = socket.create_connection((login.name, login.port), _CONNECT_SEC)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError, AttributeError):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
    return raw


def _carried_by(command: str) -> socket.socket:
    """Return a socket whose bytes a shell command carries; it ends with the socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno())
    threading.Thread(target=process.wait, name="benchflow-proxy", daemon=True).start()
    return ours


def run(client: Any, command: str, stdin: bytes = b"", limit: float = 120.0) -> tuple[int, bytes, bytes]:
    """Run a command of the user's login shell to its end; return exit code, stdout, stderr. Raises: SandboxError."""
    paramiko = _paramiko()
    try:
        channel = client.get_transport().open_session(timeout=_CONNECT_SEC)
        with contextlib.closing(channel):
            channel.settimeout(limit)
            channel.exec_command(command)
            if stdin:
                channel.sendall(stdin)
            channel.shutdown_write()
            out = b"".join(iter(lambda: channel.recv(1 << 16), b""))
            err = b"".join(iter(lambda: channel.recv_stderr(1 << 16), b""))
            return channel.recv_exit_status(), out, err
    except TimeoutError as error:
        raise SandboxError(f"a command took over {limit:g} s there") from error
    except (paramiko.SSHException, OSError, EOFError, AttributeError) as error:
        raise SandboxError(f"the connection broke: {error or type(error).__name__}") from error
