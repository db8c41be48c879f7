"""A real OpenSSH server whose users are tokens, each entering one sandbox.

It runs in mount namespaces of its own, with an `/etc/passwd` of its own: that is how OpenSSH takes a token as a user's
name without a password, as Daytona's gateway does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tests.daytonahost._world import kill_tree

if TYPE_CHECKING:
    from tests.daytonahost._world import World

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {place}/key
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PasswordAuthentication yes
PermitEmptyPasswords yes
PubkeyAuthentication no
KbdInteractiveAuthentication no
DisableForwarding yes
PrintMotd no
PrintLastLog no
MaxSessions 100
MaxStartups 200
LogLevel ERROR
"""
# The shell of every token: what it is asked to run, it runs inside the token's sandbox.
_ENTER = """\
#!/bin/sh
. {place}/tokens/"$USER" || exit 255
if [ "$1" = -c ]; then enter /bin/bash -c "$2"; else enter /bin/bash -l; fi
exit 255
"""
_SERVE = """\
mount --bind {place}/passwd /etc/passwd && mount --bind {place}/shadow /etc/shadow && mount -t tmpfs tmpfs /run &&
mkdir -m 755 /run/sshd && exec {sshd} -D -e -f {place}/config
"""


class Gateway:
    """The server and its tokens; nothing runs before the first token is made."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._tokens: dict[str, str] = {}
        self._lines: dict[str, int] = {}  # where each token is in the server's /etc/passwd
        self.given = 0

    def sandbox_of(self, token: str) -> str | None:
        """Return the sandbox that a token enters, None when it is not valid."""
        return self._tokens.get(token)

    def open_for(self, box: str) -> int:
        """Count the valid tokens of a sandbox."""
        return sum(found == box for found in self._tokens.values())

    async def admit(self, token: str, box: str, world: World, workdir: str, minutes: float) -> int:
        """Make a token valid and return the server's port."""
        async with self._starting:
            if self._process is None or self._process.returncode is not None:
                await self._start()
        command = shlex.join(world.argv([], cwd=workdir, env={"TERM": "xterm"}))
        (self._place / "tokens" / token).write_text(f'enter() {{ exec {command} "$@"; }}\n')
        with (self._place / "passwd").open("a") as passwd:
            self._lines[token] = passwd.tell()
            passwd.write(f"{token}::0:0::/:{self._place}/enter\n")
        self._tokens[token] = box
        self.given += 1
        asyncio.get_running_loop().call_later(minutes * 60, self.dismiss, box, token)
        return self._port

    def dismiss(self, box: str, token: str | None = None) -> None:
        """Make a token invalid, or all of a sandbox."""
        for known in [known for known, owner in self._tokens.items() if owner == box and token in (None, known)]:
            del self._tokens[known]
            # In place and one byte only: the server reads this very file, at any time.
            with (self._place / "passwd").open("r+b") as passwd:
                passwd.seek(self._lines.pop(known))
                passwd.write(b"!")

    def cut(self, box: str) -> int:
        """Break the connections into a sandbox, as a network does; return how many there were."""
        broken = 0
        names = [f"sshd: {token}".encode() for token, owner in self._tokens.items() if owner == box]
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                said = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if any(said.startswith(name) for name in names):
                    os.kill(int(entry.name), signal.SIGKILL)
                    broken += 1
        return broken

    async def _start(self) -> None:
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if sshd is None:
            raise RuntimeError("sshd is not installed; apt-get install openssh-server")
        place = self._place
        shutil.rmtree(place, ignore_errors=True)
        (place / "tokens").mkdir(parents=True)
        self._tokens.clear()
        self._lines.clear()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        (place / "config").write_text(_CONFIG.format(port=self._port, place=place))
        (place / "passwd").write_text("root:x:0:0::/:/bin/false\nsshd:x:74:65534::/run/sshd:/bin/false\n")
        (place / "shadow").write_text(f"root:!{secrets.token_hex(4)}:1::::::\n")
        (place / "enter").write_text(_ENTER.format(place=place))
        (place / "enter").chmod(0o755)
        keygen = await asyncio.create_subprocess_exec(
            "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / "key"), stdin=asyncio.subprocess.DEVNULL
        )
        await keygen.wait()
        script = _SERVE.format(place=place, sshd=sshd)
        command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation=private", "sh", "-c", script]
        with (place / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
            )
        for _ in range(200):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                return
            await asyncio.sleep(0.02)
        raise RuntimeError("sshd does not answer: " + (place / "log").read_text(errors="replace")[-500:])

    async def close(self) -> None:
        """End the server and every connection."""
        process, self._process = self._process, None
        if process is not None:
            kill_tree(process.pid)
            await process.wait()
