"""What a Dockerfile's commands make of this machine is kept, shared, and no way around the isolation."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.contracts import Installation
from pytest_benchflow.errors import SandboxError
from pytest_benchflow.sandboxes._local import layers as _layers
from pytest_benchflow.sandboxes._local.overlay import why_no_overlay
from pytest_benchflow.sandboxes.local import backend
from tests.contracts.sandboxrig import Rig, make_task, processes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_benchflow.sandboxes.local import LocalSandbox

WHY_NOT = backend.available() or why_no_overlay("/tmp")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
CANARY = "canary-51d0c4"
REPOSITORY = Path(__file__).parents[2]
PREFIX = sys.base_prefix
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for all tests of this file: the lowest layer is made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHFLOW_CACHE_DIR", str(shared_cache))
    monkeypatch.setattr(_layers, "_failed", {})
    return shared_cache


@pytest.fixture
def rig(tmp_path: Path, cache: Path) -> Iterator[Rig]:
    with Rig(backend, tmp_path) as made:
        yield made


def build(rig: Rig, dockerfile: str, files: dict[str, str] | None = None, **environment: Any) -> LocalSandbox:
    """Return a sandbox of a Dockerfile that begins with FROM debian:12."""
    path = rig.base / f"task-{len(list(rig.base.iterdir()))}"
    task = make_task(path, dockerfile=f"FROM debian:12\n{dockerfile}\n", **environment)
    for name, text in (files or {}).items():
        (path / "environment" / name).write_text(text)
    sandbox: Any = rig.create(task)
    return sandbox  # type: ignore[no-any-return]


def layers(cache: Path) -> set[str]:
    return {path.name for path in (cache / "layers").glob("[!.]*")}


def drafts(cache: Path) -> list[Path]:
    return list((cache / "layers").glob(".*.draft-*"))


def test_commands_run_in_order_as_their_user_and_where_they_are_told(rig: Rig) -> None:
    sandbox = build(
        rig,
        """
ARG GREETING=hello
ENV NAME=world
WORKDIR /srv/app
COPY in.txt .
RUN useradd --create-home solver && chown -R solver . && echo "$GREETING $NAME" >said
USER solver
RUN id -un >who && pwd >>who && cat in.txt >>who
SHELL ["/bin/bash", "-c"]
RUN [[ -n $BASH_VERSION ]] && echo "$0" >shell
RUN ["touch", "two words"]
RUN <<END
#!/usr/bin/env python3
open("program", "w").write("ran")
END
RUN cat >input <<END
$NAME
END
COPY --chown=solver later.txt later.txt""",
        {"in.txt": "brought\n", "later.txt": "later"},
    )
    shown = rig.sh(sandbox, "cat said who shell program input; ls; id -un; stat -c %U later.txt")
    assert shown.stdout.split() == [
        *("hello", "world", "solver", "/srv/app", "brought", "/bin/bash", "ranworld"),
        *("in.txt", "input", "later.txt", "program", "said", "shell", "two", "words", "who", "solver", "solver"),
    ], shown


STAGES = """
FROM debian AS maker
RUN mkdir -p /out/deep && echo made >/out/deep/file && ln -s file /out/deep/link && echo top >/out/top
FROM maker AS further
RUN echo more >/out/more
FROM debian
COPY --from=further --chown=daemon /out /copied
COPY --from=0 /out/top /out/deep/fi* /single/
COPY --from=maker /out/top /named
ADD data.tar.gz /unpacked
RUN echo end >/end
"""


def test_stages_and_archives_are_copied_from(rig: Rig) -> None:
    context = rig.base / "context" / "environment"
    (context / "tree").mkdir(parents=True)
    (context / "tree" / "leaf").write_text("leaf")
    subprocess.run(["tar", "czf", "../data.tar.gz", "leaf"], cwd=context / "tree", check=True)
    sandbox = rig.create(make_task(rig.base / "context", dockerfile=STAGES))
    tree = rig.sh(sandbox, "find . | sort; readlink deep/link; stat -c %U more; cat more", cwd="/copied").stdout
    assert tree.split() == [".", "./deep", "./deep/file", "./deep/link", "./more", "./top", "file", "daemon", "more"]
    rest = rig.sh(sandbox, "ls /single; cat /named /end; ls /unpacked; ls /out /opt", cwd="/")
    assert rest.stdout.split() == ["file", "top", "top", "end", "leaf", "/opt:", "benchflow-spawner.py"]
    assert "/out" in rest.stderr


def test_the_second_rollout_builds_nothing_and_tasks_share_what_they_begin_with(
    rig: Rig, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = "RUN date +%N >/once\nRUN date +%N >/second"
    first = build(rig, steps, {"not-copied": "1"})
    known = layers(cache)
    with monkeypatch.context() as nothing:
        nothing.setattr(_layers, "Workshop", None)
        again = build(rig, steps, {"not-copied": "2"})
    assert layers(cache) == known
    assert rig.sh(first, "cat /once /second").stdout == rig.sh(again, "cat /once /second").stdout
    rig.sh(again, "echo own >/once")
    assert rig.sh(first, "cat /once").stdout != "own\n"
    other = build(rig, "RUN date +%N >/once\nRUN echo other >/second")
    assert len(layers(cache) - known) == 1
    assert rig.sh(other, "cat /once").stdout == rig.sh(first, "cat /once").stdout


@pytest.mark.parametrize(
    ("dockerfile", "content"),
    [
        ("COPY f /f\nRUN cat /f", "2"),
        ("ENV A=2\nCOPY f /f\nRUN cat /f", "1"),
        ("USER daemon\nCOPY f /f\nRUN cat /f", "1"),
        ("WORKDIR /tmp\nCOPY f /f\nRUN cat /f", "1"),
        ("COPY --chmod=600 f /f\nRUN cat /f", "1"),
        ('COPY f /f\nSHELL ["/bin/bash", "-c"]\nRUN cat /f', "1"),
    ],
    ids=["file", "variable", "user", "directory", "mode", "shell"],
)
def test_a_layer_is_made_anew_when_what_it_is_made_of_changes(
    rig: Rig, cache: Path, dockerfile: str, content: str
) -> None:
    build(rig, "COPY f /f\nRUN cat /f", {"f": "1"})
    known = layers(cache)
    build(rig, "COPY f /f\nRUN cat /f", {"f": "1"})
    assert layers(cache) == known
    build(rig, dockerfile, {"f": content})
    assert len(layers(cache) - known) == 1


PROGRAM = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
from tests.contracts.sandboxrig import Rig, make_task, processes_of
from pytest_benchflow.sandboxes.local import backend
base = Path(sys.argv[1])
with Rig(backend, base) as rig:
    sandbox = rig.create(make_task(base / "task", dockerfile=f"FROM debian\\nRUN {{sys.argv[2]}}\\n"))
    print(rig.sh(sandbox, "cat /when").stdout)
"""


def test_two_processes_build_a_layer_once(tmp_path: Path, cache: Path) -> None:
    several = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / name), "sleep 1; date +%N >/when"]
        several.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=120)[0].strip() for process in several]
    assert outputs[0] == outputs[1] != ""
    assert drafts(cache) == []


def test_what_a_killed_build_left_does_not_count_and_the_next_one_removes_it(
    rig: Rig, tmp_path: Path, cache: Path
) -> None:
    command = "touch /app/begun; sleep 600; date >/when"
    (tmp_path / "killed").mkdir()
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "killed"), command])
    deadline = time.monotonic() + 60
    while not (begun := list((cache / "layers").glob(".*.draft-*/root/app/begun"))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(processes_of(cache)) > 1
    process.send_signal(signal.SIGKILL)
    process.wait()
    while processes_of(cache):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (draft,) = drafts(cache)
    name = draft.name.split(".")[1]
    assert name not in layers(cache)
    assert begun[0].exists()
    assert str(cache) not in Path("/proc/self/mountinfo").read_text()
    build(rig, "RUN echo something else")
    assert drafts(cache) == []


@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("RUN echo begun; echo bad >&2; exit 3", "Dockerfile:2: RUN echo begun; .* exit code 3; .*\nbegun\nbad"),
        ("WORKDIR /w\nRUN nosuchprogram", "Dockerfile:3: RUN nosuchprogram ended with exit code 127.*not found"),
        ("USER nobody-here\nRUN true", "nobody-here"),
        ("RUN true\nCOPY nothing /x", "nothing"),
    ],
    ids=["exit-code", "unknown-program", "unknown-user", "no-such-file"],
)
def test_a_step_that_fails_says_where_and_why(rig: Rig, dockerfile: str, said: str) -> None:
    with pytest.raises((SandboxError, ValueError), match=f"(?s){said}"):
        build(rig, dockerfile)


def test_a_failed_build_leaves_nothing_and_is_not_tried_again_in_the_session(
    rig: Rig, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SandboxError, match="exit code 9"):
        build(rig, "RUN exit 9")
    assert drafts(cache) == []
    monkeypatch.setattr(_layers, "Workshop", None)
    with pytest.raises(SandboxError, match="exit code 9"):
        build(rig, "RUN exit 9")


def test_a_build_beyond_its_time_is_ended(rig: Rig) -> None:
    with pytest.raises(SandboxError, match=r"RUN sleep 600 did not end: .* 1 s \(environment.build_timeout_sec\)"):
        build(rig, "RUN sleep 600", build_timeout_sec=1.0)


LOOK = rf"""RUN env >/seen; pattern={CANARY[:5]}'[-]'{CANARY[7:]}; \
    grep -rs --exclude-dir=.pyenv $pattern /root /home /etc /var /opt /tmp /run /usr/local/etc >>/seen; \
    ls -d /root/.ssh /root/.aws /root/.config /root/.netrc /root/.docker /etc/ssh /etc/sudoers >>/seen 2>/dev/null; \
    cat /etc/shadow >>/seen; true"""


def test_a_command_finds_no_secret_of_this_machine(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOST_API_KEY", CANARY)
    monkeypatch.setenv("PIP_INDEX_URL", f"https://user:{CANARY}@index.example.com/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://more.example.com/simple")
    (tmp_path / "netrc").write_text(CANARY)
    home = Path.home() / f".{CANARY}"
    home.write_text(CANARY)
    try:
        seen = rig.sh(build(rig, LOOK), "cat /seen").stdout
    finally:
        home.unlink()
    assert CANARY not in seen
    assert "index.example.com" not in seen
    assert "PIP_EXTRA_INDEX_URL=https://more.example.com/simple" in seen
    entries = [line for line in seen.splitlines() if line.startswith("/")]
    assert entries == []
    assert {line.split(":")[1] for line in seen.splitlines() if line.count(":") == 8} == {"*"}


def test_a_command_reaches_no_port_of_this_machine(rig: Rig) -> None:
    sandbox = build(rig, 'RUN python3 -c "import socket; print([n for _, n in socket.if_nameindex()])" >/seen')
    assert rig.sh(sandbox, "cat /seen").stdout == "['lo']\n"


def test_what_is_mounted_writable_is_the_rollouts_own(rig: Rig) -> None:
    sandbox = build(rig, "RUN true")
    mounts = rig.python(
        sandbox,
        """
        import json
        fields = [line.split() for line in open("/proc/self/mountinfo")]
        print(json.dumps([[f[4], f[-3], f[-1]] for f in fields if "rw" in f[5].split(",")]))
        """,
    )
    overlaid = {place: options for place, kind, options in mounts if kind == "overlay"}
    assert set(overlaid) >= {"/", "/usr"}
    assert all(f"/{sandbox.id}/" in options.partition("upperdir=")[2] for options in overlaid.values())
    rest = {place for place, kind, _ in mounts if kind != "overlay"}
    assert rest == {"/dev", "/dev/pts", *(f"/dev/{d}" for d in ("null", "zero", "full", "random", "urandom", "tty"))}
    before = Path("/usr/bin/env").stat()
    assert rig.sh(sandbox, "echo x >/usr/bin/env; rm -rf /usr/share/doc/bash; cat /usr/bin/env").stdout == "x\n"
    assert (Path("/usr/bin/env").stat(), Path("/usr/share/doc/bash").is_dir()) == (before, True)


@pytest.mark.parametrize(
    "command",
    [
        "mount -o remount,rw /proc", "mount --bind /app /usr", "umount /usr", "umount -l /proc", "mv /usr /usr2",
        "mount -t tmpfs none /mnt", "unshare --mount true", "unshare --user true", "mknod /tmp/disk b 8 0",
        "test -w /proc/sys/kernel/core_pattern", "nsenter -t 1 -m true",
    ],
)  # fmt: skip
def test_privileged_operations_fail(rig: Rig, command: str) -> None:
    assert rig.sh(build(rig, "RUN true"), command).exit_code != 0


ARCH = "$(dirname /lib/*-linux-gnu/libc.so.6)"
ATTACKS = {
    "preload": "echo /app/evil.so >/etc/ld.so.preload",
    "cache": "echo forged >/etc/ld.so.cache",
    "search-path": "mkdir -p /etc/ld.so.conf.d; echo /app >/etc/ld.so.conf.d/0.conf",
    "loader": f"cp /usr/bin/false /tmp/f; mv /tmp/f {ARCH}/ld-linux-x86-64.so.2",
    "library": f"cd {ARCH}; rm libc.so.6",
    "better-library": f"d={ARCH}; mkdir -p $d/glibc-hwcaps/x86-64-v2; touch $d/glibc-hwcaps/x86-64-v2/libc.so.6",
    "shell": "cp /usr/bin/false /tmp/f; mv /tmp/f /usr/bin/dash",
    "first-on-path": "cp /usr/bin/false /usr/local/bin/bash; cp /usr/bin/false /usr/local/sbin/env",
    "programs-as-a-link": "cp -a /usr/bin /app/bin; rm -rf /usr/bin; /app/bin/ln -s /app/bin /usr/bin",
    "programs-gone": "rm -rf /usr/sbin /usr/bin",
    "python": f"cp /usr/bin/false {PREFIX}/bin/new; mv {PREFIX}/bin/new {PREFIX}/bin/{VERSION}",
    "module": f"echo 'raise SystemExit(7)' >{PREFIX}/lib/{VERSION}/os.py",
    "package": f"rm -rf {PREFIX}/lib/{VERSION}/json; mkdir {PREFIX}/lib/{VERSION}/json",
    "compiled-module": f"mkdir -p {PREFIX}/lib/{VERSION}/__pycache__; touch {PREFIX}/lib/{VERSION}/__pycache__/own.pyc",
    "start-module": f"echo 'raise SystemExit(7)' >{PREFIX}/lib/{VERSION}/sitecustomize.py",
    "start-module-beside": f"echo 'raise SystemExit(7)' >{PREFIX}/lib/{VERSION}/site-packages/usercustomize.py",
    "settings-of-python": f"echo 'home = /app' >{PREFIX}/pyvenv.cfg",
    "zipped-modules": f"touch {PREFIX}/lib/{VERSION.replace('.', '')}.zip",
    "openssl": "echo 'openssl_conf = /app/evil' >/etc/ssl/openssl.cnf",
}
STATE = f"""
cd /etc
find ld.so* ssl/openssl.cnf nsswitch.conf -type f | sort | xargs sha256sum
for name in sh bash env python3 {VERSION}; do p=$(command -v $name); echo $p; sha256sum $p; done
sha256sum /lib/*-linux-gnu/libc.so.6 /lib64/ld-linux* {PREFIX}/lib/{VERSION}/os.py {PREFIX}/lib/{VERSION}/json/*.py
ls -d /usr/bin /usr/sbin {PREFIX}/pyvenv.cfg {PREFIX}/lib/*.zip {PREFIX}/lib/{VERSION}/sitecustomize.py 2>&1
ls /lib/*-linux-gnu/glibc-hwcaps {PREFIX}/lib/{VERSION}/__pycache__/own.pyc 2>&1
bash -c 'python3 -c "import json, os, ssl; print(\\"well\\")"'
"""


@pytest.fixture(scope="session")
def untouched(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return what STATE tells of a sandbox that nothing was done in."""
    with pytest.MonkeyPatch.context() as patch, Rig(backend, tmp_path_factory.mktemp("untouched")) as rig:
        patch.setenv("BENCHFLOW_CACHE_DIR", str(shared_cache))
        shown = rig.sh(build(rig, "RUN true"), STATE, cwd="/")
    assert "well" in shown.stdout
    return shown.stdout, shown.stderr


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_next_phase_starts_as_the_first_did(rig: Rig, untouched: tuple[str, str], attack: str) -> None:
    sandbox = build(rig, "RUN true")
    rig.run(sandbox.enter("agent", "proxy"))
    rig.sh(sandbox, ATTACKS[attack])
    rig.run(sandbox.enter("verifier", "none"))
    after = rig.sh(sandbox, STATE, cwd="/")
    assert (after.stdout, after.stderr) == untouched


def test_what_an_agent_installs_stays(rig: Rig) -> None:
    sandbox = build(rig, "RUN true")
    rig.run(sandbox.enter("agent", "proxy"))
    rig.sh(
        sandbox,
        "packages=$(python3 -c 'import site; print(site.getsitepackages()[0])')\n"
        "mkdir -p $packages; echo 'value = 42' >$packages/agents_module.py\n"
        "mkdir -p /usr/local/lib/python3.99/json; rm -rf /usr/share/doc/bash; echo x >/usr/include/own.h\n"
        "printf '#!/bin/sh\\necho own' >/usr/local/bin/own-tool; chmod +x /usr/local/bin/own-tool\n",
    )
    rig.run(sandbox.enter("verifier", "none"))
    look = (
        "own-tool; python3 -c 'import agents_module; print(agents_module.value)'; cat /usr/include/own.h; "
        "ls -d /usr/share/doc/bash /usr/local/lib/python3.99/json"
    )
    assert rig.sh(sandbox, look).stdout.split() == ["own", "42", "x", "/usr/local/lib/python3.99/json"]


def test_no_link_of_an_image_leads_to_this_machine(rig: Rig, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(CANARY)
    sandbox = build(rig, f"RUN ln -s {outside} /etc/python3.77 && ln -sf {outside}/secret /etc/hostname")
    rig.run(sandbox.enter("agent", "proxy"))
    rig.sh(sandbox, "rm /etc/python3.77")
    rig.run(sandbox.enter("verifier", "none"))
    assert CANARY not in rig.sh(sandbox, "cat /etc/python3.77/secret /etc/hostname").stdout
    assert (outside / "secret").read_text() == CANARY


def test_a_stopped_sandbox_leaves_no_mount_and_no_descriptor(rig: Rig) -> None:
    rig.run(build(rig, "RUN true").stop())
    before = len(list(Path("/proc/self/fd").iterdir()))
    sandbox = build(rig, "RUN true")
    rig.sh(sandbox, "echo x >/usr/share/x")
    rig.run(sandbox.enter("verifier", "none"))
    rig.sh(sandbox, "true")
    rig.run(sandbox.stop())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert sandbox.id not in Path("/proc/self/mountinfo").read_text()


def test_an_installation_is_made_once_and_beside_every_image(rig: Rig, tmp_path: Path) -> None:
    thing = Installation(name="thing", version="1", script="date +%N >/opt/benchflow/made", timeout_sec=60)
    broken = make_task(tmp_path / "broken", dockerfile="FROM debian\nCOPY f /opt/f\nRUN exit 9\n")
    first = rig.run(backend.install(thing, broken, tmp_path / "first.log"))
    sandbox = rig.create(make_task(tmp_path / "other", dockerfile="FROM debian\nRUN true\n"), mounts=first)
    again = rig.run(backend.install(thing, make_task(tmp_path / "plain"), tmp_path / "again.log"))
    assert again == first
    assert not (tmp_path / "again.log").exists()
    assert rig.sh(sandbox, "cat /opt/benchflow/made").stdout == (first[0].source / "made").read_text()
    assert rig.sh(sandbox, "echo x >/opt/benchflow/made").exit_code != 0


def test_what_stands_for_the_image_is_recorded(rig: Rig) -> None:
    applied = "this machine's own programs, and what the Dockerfile made of them"
    assert build(rig, "RUN true").limits["image"] == {"asked": "debian:12", "applied": applied}
