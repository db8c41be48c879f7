"""What cannot be done from inside a local sandbox, tried from inside one. Kernel files are never written to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import SandboxError
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes._local import limits as _limits
from pytest_benchflow.sandboxes._local.limits import remove_stale_groups
from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import EchoEndpoint, Rig, make_task, processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.contracts import Sandbox

pytestmark = pytest.mark.skipif(backend.available() is not None, reason=str(backend.available()))

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have this")
CANARY = "canary-7f3a91"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path) as made:
        yield made


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    made = rig.create()
    rig.run(made.enter("agent", "proxy"))
    return made


def test_only_the_rollouts_own_directory_is_mounted_writable(rig: Rig, sandbox: Sandbox) -> None:
    mounts = rig.python(
        sandbox,
        """
        import json
        fields = [line.split() for line in open("/proc/self/mountinfo")]
        print(json.dumps([(f[3], f[4]) for f in fields if "rw" in f[5].split(",")]))
        """,
    )
    places = {place for _, place in mounts}
    assert places == {
        "/",
        "/dev",
        "/dev/pts",
        "/dev/tty",
        *(f"/dev/{d}" for d in ("null", "zero", "full", "random", "urandom")),
    }
    assert next(root for root, place in mounts if place == "/").endswith(f"/{sandbox.id}/root")


def test_no_file_of_the_kernel_or_the_host_can_be_written(rig: Rig, sandbox: Sandbox) -> None:
    writable = rig.python(
        sandbox,
        """
        import json, os
        found, seen = [], 0
        mine = {str(os.getpid()), "self", "thread-self"}
        for top in ("/proc", "/usr/bin", "/usr/sbin", "/usr/local", "/etc/ssl/certs", "/etc/alternatives"):
            for directory, names, files in os.walk(top):
                if top == "/proc" and directory == "/proc":
                    names[:] = [name for name in names if name not in mine]
                for path in [directory, *(os.path.join(directory, name) for name in files)]:
                    seen += 1
                    if not os.path.islink(path) and os.access(path, os.W_OK):
                        found.append(path)
                if seen > 60000:
                    break
        assert seen > 2000, seen
        print(json.dumps(found))
        """,
    )
    assert writable == []


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sysrq-trigger",
        "/usr",
        "/usr/bin/env",
        "/proc/self/oom_score_adj",
    ],
)
def test_test_w_says_no(rig: Rig, sandbox: Sandbox, path: str) -> None:
    assert rig.sh(sandbox, f"test -w {path}").exit_code == 1


def test_the_hosts_files_are_not_there(rig: Rig, sandbox: Sandbox, tmp_path: Path) -> None:
    planted = tmp_path / "secret"
    planted.write_text(CANARY)
    inside = [str(planted), *(f"/proc/{pid}/root{planted}" for pid in (1, "self")), f"/app/../../../..{planted}"]
    for path in [
        *inside,
        str(REPOSITORY),
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/ssh",
        "/var/lib/dpkg",
        "/boot",
        "/sys/kernel",
    ]:
        assert rig.sh(sandbox, f"ls -d '{path}'").exit_code != 0, path


def test_no_secret_of_the_host_is_found_anywhere(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plant it where secrets are: the environment, the temporary and the home directory."""
    monkeypatch.setenv("HOST_API_KEY", CANARY)
    (tmp_path / "netrc").write_text(CANARY)
    home = Path.home() / f".{CANARY}" if os.access(Path.home(), os.W_OK) else tmp_path / "home"
    home.write_text(CANARY)
    # A process of the host's that shows it too.
    shower = subprocess.Popen(["sleep", "600"], env={"SHOWN": CANARY})
    try:
        sandbox = rig.create()
        rig.run(sandbox.enter("agent", "proxy"))
        where = "/tmp /home /root /etc /var /run /opt /mnt /srv /app /logs /dev/shm"
        pattern = f"{CANARY[:5]}[-]{CANARY[7:]}"  # or the search would find its own command line
        found = rig.sh(
            sandbox, f"env; grep -rs '{pattern}' {where}; grep -s '{pattern}' /proc/[0-9]*/environ /proc/[0-9]*/cmdline"
        )
        assert CANARY not in found.stdout
    finally:
        home.unlink()
        shower.kill()
        shower.wait()


def test_no_password_of_the_host_is_shown(rig: Rig, sandbox: Sandbox) -> None:
    entries = rig.sh(sandbox, "cat /etc/passwd /etc/shadow").stdout.splitlines()
    assert {entry.split(":")[1] for entry in entries} == {"x", "*"}


@pytest.mark.parametrize("name", ["kcore", "keys", "kmsg", "kallsyms", "iomem", "timer_list"])
def test_the_kernels_own_view_of_the_host_is_empty(rig: Rig, sandbox: Sandbox, name: str) -> None:
    assert rig.sh(sandbox, f"cat /proc/{name}").stdout == ""


@pytest.mark.parametrize(
    "command",
    [
        "mount -o remount,rw /usr",
        "mount -o remount,rw /proc",
        "mount --bind /app /usr",
        "mount -t tmpfs none /mnt",
        "mount -t proc none /mnt",
        "umount /proc/sys",
        "umount -l /proc",
        "unshare --user --map-root-user true",
        "unshare --user --map-root-user --mount --pid --fork --mount-proc true",
        "unshare --mount true",
        "unshare --net true",
        "chroot / true",
        "mknod /tmp/disk b 8 0",
        "dmesg",
        "kill -0 -- -1 && false",
        "chown 0:0 /usr/bin/env",
        "hostname other",
        "date -s 2001-01-01",
        "nsenter -t 1 -m true",
    ],
)  # fmt: skip
def test_privileged_operations_fail(rig: Rig, sandbox: Sandbox, command: str) -> None:
    assert rig.sh(sandbox, f"PATH=$PATH:/usr/sbin:/sbin; {command}").exit_code != 0


def test_system_calls_that_reach_past_namespaces_are_refused(rig: Rig, sandbox: Sandbox) -> None:
    errors = rig.python(
        sandbox,
        """
        import ctypes, errno, json, platform
        libc = ctypes.CDLL(None, use_errno=True)
        names = ("keyctl", "add_key", "bpf", "perf_event_open", "userfaultfd", "clone3")
        numbers = {"x86_64": (250, 248, 321, 298, 323, 435), "aarch64": (219, 217, 280, 241, 282, 435)}
        found = {}
        for name, number in zip(names, numbers[platform.machine()]):
            assert libc.syscall(number, 0, 0, 0, 0, 0) == -1
            found[name] = errno.errorcode[ctypes.get_errno()]
        print(json.dumps(found))
        """,
    )
    assert errors.pop("clone3") == "ENOSYS"
    assert set(errors.values()) == {"EPERM"}


def test_no_socket_leads_past_the_network_of_the_phase(rig: Rig, sandbox: Sandbox) -> None:
    found = rig.python(
        sandbox,
        """
        import ctypes, errno, json, socket
        libc = ctypes.CDLL(None, use_errno=True)
        found = {}
        for name, call in {
            "socket": lambda: libc.socket(socket.AF_VSOCK, socket.SOCK_STREAM, 0),
            "pair": lambda: libc.socketpair(socket.AF_VSOCK, socket.SOCK_STREAM, 0, (ctypes.c_int * 2)()),
            "ring": lambda: libc.syscall(425, 8, ctypes.create_string_buffer(120)),
            "of-the-phase": lambda: -(libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0) < 0),
        }.items():
            ctypes.set_errno(0)
            found[name] = [call(), errno.errorcode.get(ctypes.get_errno())]
        print(json.dumps(found))
        """,
    )
    assert found == {
        "socket": [-1, "EAFNOSUPPORT"],
        "pair": [-1, "EAFNOSUPPORT"],
        "ring": [-1, "ENOSYS"],
        "of-the-phase": [0, None],
    }


@as_root
def test_root_inside_has_five_capabilities_and_gains_no_more(rig: Rig, sandbox: Sandbox) -> None:
    text = rig.sh(
        sandbox, "cp /usr/bin/grep /tmp/g; chmod 4755 /tmp/g; /tmp/g -E 'Cap(Prm|Eff)|NoNewPrivs' /proc/self/status"
    ).stdout
    # CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID: bits 0, 1, 3, 6 and 7.
    assert text.split() == ["CapPrm:", "00000000000000cb", "CapEff:", "00000000000000cb", "NoNewPrivs:", "1"]


@as_root
def test_a_named_user_has_no_power_over_roots_files_and_processes(rig: Rig, sandbox: Sandbox) -> None:
    rig.sh(sandbox, "echo x >/app/mine; chmod 600 /app/mine; sleep 99 &")
    harmless = "id -u; id -G; grep CapEff /proc/self/status"
    result = rig.sh(
        sandbox, f"{harmless}; cat /app/mine; touch /app/new; kill -9 -1; kill -9 1; su -c id", user="nobody"
    )
    assert result.stdout.split() == ["65534", "65534", "CapEff:", "0000000000000000"]
    assert rig.sh(sandbox, "pgrep -x sleep; ls /app").stdout.split()[1:] == ["mine"]


@as_root
@pytest.mark.parametrize(("user", "ids"), [(1234, "1234 1234"), ("1234:5", "1234 5"), ("0", "0 0"), ("daemon", "1 1")])
def test_users_are_found_by_name_and_number(rig: Rig, sandbox: Sandbox, user: str | int, ids: str) -> None:
    assert rig.sh(sandbox, "echo $(id -u) $(id -g)", user=user).stdout.strip() == ids


@as_root
def test_root_inside_may_become_others_and_a_timeout_still_kills_them(rig: Rig, sandbox: Sandbox) -> None:
    assert rig.sh(sandbox, "su -s /bin/sh daemon -c 'id -un'").stdout == "daemon\n"
    assert rig.sh(sandbox, "su -s /bin/sh daemon -c 'setsid sleep 2222 & sleep 2222'", timeout=0.7).timed_out
    assert rig.sh(sandbox, "pgrep -x sleep").stdout == ""


def test_an_unknown_user_is_named(rig: Rig, sandbox: Sandbox) -> None:
    with pytest.raises(SandboxError, match="nosuchuser"):
        rig.sh(sandbox, "true", user="nosuchuser")


def test_no_process_of_the_host_can_be_seen_or_hit(rig: Rig, sandbox: Sandbox) -> None:
    own = subprocess.Popen(["sleep", "600"])
    try:
        result = rig.sh(
            sandbox,
            f"ls -d /proc/[0-9]* | wc -l; kill -9 {own.pid}; kill -9 {os.getpid()}; cat /proc/{own.pid}/cmdline",
        )
        assert int(result.stdout) < 10
        assert own.poll() is None
    finally:
        own.kill()
        own.wait()


def test_process_one_can_be_neither_killed_nor_traced(rig: Rig, sandbox: Sandbox) -> None:
    rig.sh(sandbox, "kill -9 1; kill -STOP 1; kill -TERM 1")
    assert rig.sh(sandbox, "cat /proc/1/environ /proc/1/maps; readlink /proc/1/fd/*; ls /proc/1/root/").stdout == ""
    traced = rig.python(
        sandbox,
        """
        import ctypes, json
        libc = ctypes.CDLL(None, use_errno=True)
        print(json.dumps([libc.ptrace(16, 1, 0, 0), ctypes.get_errno()]))
        """,
    )
    assert traced == [-1, 1]


def test_no_port_answers_but_the_proxys(rig: Rig, sandbox: Sandbox) -> None:
    everywhere = socket.create_server(("0.0.0.0", 0))
    local = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{CANARY}-{os.getpid()}")
    abstract.listen()
    program = f"""
        import json, os, socket
        reached = []
        for port in range(1, 65536):
            with socket.socket() as s:
                # Trying all ports, a socket once gets the very one it asks for, and meets itself.
                if s.connect_ex(("127.0.0.1", port)) == 0 and s.getsockname() != s.getpeername():
                    reached.append(port)
        for address in {_addresses()!r}:
            for port in ({everywhere.getsockname()[1]}, {local.getsockname()[1]}, 22, 80):
                with socket.socket() as s:
                    s.settimeout(2)
                    if s.connect_ex((address, port)) == 0:
                        reached.append((address, port))
        with socket.socket(socket.AF_UNIX) as s:
            if s.connect_ex("\\0{CANARY}-{os.getpid()}") == 0:
                reached.append("abstract")
        print(json.dumps([reached, [name for _, name in socket.if_nameindex()]]))
    """

    async def scan() -> tuple[Any, Any]:
        endpoint = EchoEndpoint()
        await sandbox.reach(endpoint)
        with_proxy = await sandbox.exec(["python3", "-c", textwrap.dedent(program)])
        await endpoint.close()
        await sandbox.enter("verifier", "none")
        without = await sandbox.exec(["python3", "-c", textwrap.dedent(program)])
        return with_proxy, without

    try:
        results = rig.run(scan())
    finally:
        for listener in (everywhere, local, abstract):
            listener.close()
    assert [json.loads(result.stdout) for result in results] == [[[8000], ["lo"]], [[], ["lo"]]]


def _addresses() -> list[str]:
    """Return addresses of this host other than loopback, and one of the outside."""
    found = ["198.51.100.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return found
        return [*found, probe.getsockname()[0]]


PROGRAM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {repository!r})
from pytest_benchflow.contracts import SandboxSpec
from pytest_benchflow.sandboxes._local import limits as _limits
from pytest_benchflow.sandboxes._local.limits import remove_stale_groups
from pytest_benchflow.rollout.scratch import ScratchBase
from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import make_task

async def main():
    base = ScratchBase(Path({base!r}))
    base.open()
    sandbox = await backend.create(SandboxSpec("doomed", make_task(Path({task!r}), memory_mb=256), base.new("doomed")))
    await sandbox.enter("agent", "proxy")
    await sandbox.exec(["sh", "-c", "setsid sleep 1111 & (sleep 1111 &)"])
    process = await sandbox.spawn(["sleep", "1111"])
    print("up", flush=True)
    await process.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["sigkill", "sigterm"])
def test_all_dies_with_the_process_that_made_it_and_the_next_session_cleans_up(tmp_path: Path, number: int) -> None:
    base = tmp_path / "scratch"
    program = PROGRAM.format(repository=str(REPOSITORY), base=str(base), task=str(tmp_path / "task"))
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == b"up\n"
    assert len(processes_of(base)) > 3
    with ScratchBase(base) as other:
        assert other.sweep() == [], "a living session's files were removed"
        parent.send_signal(number)
        parent.wait()
        deadline = time.monotonic() + 10
        while processes_of(base) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert processes_of(base) == []
        assert len(other.sweep()) == 1
    assert list(base.iterdir()) == []
    remove_stale_groups.cache_clear()
    remove_stale_groups()
    assert _control_groups(parent.pid) == []


def _control_groups(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/benchflow-{pid}-*"))


def test_a_stopped_sandbox_leaves_no_control_group_and_no_mount(rig: Rig, tmp_path: Path) -> None:
    sandbox = rig.create(make_task(tmp_path / "task", memory_mb=256, cpus=0.5))
    rig.sh(sandbox, "sleep 99 &")
    held = _control_groups(os.getpid())
    assert bool(held) is any(limit["applied"] == "control group" for limit in sandbox.limits.values())
    rig.run(sandbox.stop())
    assert _control_groups(os.getpid()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_fork_bomb_is_stopped_and_leaves_the_host_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "MAX_PROCESSES", 200)
    sandbox = rig.create()
    if "processes" not in sandbox.limits:
        pytest.skip("this user may make no control group, so nothing bounds the number of processes")
    result = rig.sh(sandbox, "f() { f | f & }; f; sleep 5", timeout=1.0)
    assert result.timed_out
    rig.run(sandbox.enter("verifier", "none"))
    assert rig.sh(sandbox, "echo well").stdout == "well\n"


def test_memory_beyond_the_limit_is_refused_or_ends_the_command(rig: Rig, tmp_path: Path) -> None:
    sandbox = rig.create(make_task(tmp_path / "task", memory_mb=128))
    assert sandbox.limits["memory_mb"]["asked"] == 128
    result = rig.run(sandbox.exec(["python3", "-c", "b = bytearray(400_000_000); print(len(b))"], timeout=60))
    assert result.exit_code not in (0, None)
    assert rig.sh(sandbox, "echo well").stdout == "well\n"


def test_a_file_beyond_the_limit_is_refused(rig: Rig, tmp_path: Path) -> None:
    sandbox = rig.create(make_task(tmp_path / "task", storage_mb=1))
    assert rig.sh(sandbox, "head -c 3000000 /dev/zero >/app/big").exit_code != 0


def _interpreter_for_everybody() -> tuple[str, dict[str, str]] | None:
    """Return a Python that user 65534 can run with this one's packages, if there is one."""
    places = [str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    check = f"""
import os, sys, pytest, pytest_benchflow
assert os.access(os.path.realpath(sys.executable), os.X_OK) and sys.version_info[:2] == {sys.version_info[:2]}
"""
    for candidate in (sys.executable, "/usr/bin/python3"):
        tried = subprocess.run(_as_nobody(candidate, "-c", check), env=env, cwd="/", capture_output=True, check=False)
        if tried.returncode == 0:
            return candidate, env
    return None


def _as_nobody(*command: str) -> list[str]:
    return ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *command]


@as_root
@pytest.mark.parametrize(
    ("module", "choice"),
    [
        ("test_isolation.py", ""),
        ("test_descriptors.py", ""),
        ("test_between_phases.py", ""),
        ("test_public_network.py", ""),
        ("test_hostile_links.py", ""),
        ("test_sandboxes.py", "timeout or phase or upload or download or removed or directory or endpoint or stopped"),
    ],
    ids=["isolation", "descriptors", "phases", "public", "links", "contract"],
)
def test_it_holds_for_an_ordinary_user_too(module: str, choice: str) -> None:
    if shutil.which("setpriv") is None or (found := _interpreter_for_everybody()) is None:
        pytest.skip("no interpreter here that an ordinary user may run")
    python, env = found
    base = Path("/tmp") / f"benchflow-nobody-{os.getpid()}"
    base.mkdir()
    os.chown(base, 65534, 65534)
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={base}/t",
        "--rootdir",
        str(REPOSITORY),
    ]
    try:
        done = subprocess.run(
            _as_nobody(*command, str(Path(__file__).with_name(module)), "-k", choice),
            env={**env, "HOME": str(base), "TMPDIR": str(base)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    finally:
        shutil.rmtree(base)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
