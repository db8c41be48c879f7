"""--benchflow-ssh-host: which machines the ssh sandbox uses, and what is said of those that it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench
    from tests.sshhost import Sshd

SSH = "--benchflow-sandbox=ssh"
MISTAKES = {
    "no-host": ([SSH], "is 'ssh', which needs hosts; pass --benchflow-ssh-host=[[]user@]host[[]:port][[]*slots]"),
    "no-ssh": (["--benchflow-ssh-host=box"], "--benchflow-ssh-host is for --benchflow-sandbox=ssh"),
    "no-name": ([SSH, "--benchflow-ssh-host=me@"], "--benchflow-ssh-host: 'me@' is no host; it takes [[]user@]host*"),
    "two-numbers": (
        [SSH, "--benchflow-ssh-host=box*1", "--benchflow-ssh-host=box*2"],
        "--benchflow-ssh-host: the host box is named with 1 and with 2 slots",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_anything_starts(bench: Bench, name: str) -> None:
    bench.task()
    options, said = MISTAKES[name]
    done = bench.run("tasks", *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"*{said}*"])


def test_hosts_of_the_ini_file_are_used_and_one_that_is_not_there_is_the_reason_of_a_skip(
    bench: Bench, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(sshd.home))
    bench.task()
    bench.pytester.makeini("[pytest]\nbenchflow_sandbox = ssh\nbenchflow_ssh_host = 127.0.0.1:1\n")
    done = bench.run("tasks", "-m", "rollout", "--benchflow-agent=oracle", "-rs")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*127.0.0.1:1 (127.0.0.1, port 1) cannot be reached: *refused*"])
