"""What comes of a job on another machine, told here by a process in a directory of its own."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from pytest_benchflow.collect.far_job import FarJob
from pytest_benchflow.errors import RecordError


def rollout(path: Path, verdict: str | None = "pass") -> None:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"rollout_name": path.name}))
    (path / "result.json").write_text(json.dumps({"verdict": verdict}))


def test_a_rollout_that_cannot_come_keeps_no_other_from_coming(tmp_path: Path) -> None:
    far, here = tmp_path / "far", tmp_path / "here"
    for name in ("a\x1b[2J", "b", "c"):
        rollout(far / name)
    (far / "cells.jsonl").write_text(json.dumps({"cell": "d", "error": "said"}) + "\n")
    here.mkdir()
    job = FarJob("popen", str(far), here, tmp_path)
    job.finish()
    assert sorted(path.name for path in here.iterdir()) == ["b", "c", "cells.jsonl"]
    (left,) = job.left
    assert "is no name of a rollout" in left
    assert "\x1b" not in left
    assert (far / "a\x1b[2J" / "result.json").is_file()


def test_all_that_has_come_is_gone_there_and_no_attempt_takes_a_whole_ones_place(tmp_path: Path) -> None:
    far, here = tmp_path / "far" / "ramp", tmp_path / "here"
    rollout(far / "a", None)
    rollout(here / "a")
    (here / "a" / "attempts" / "\u00b2").mkdir(parents=True)  # a digit that is no number
    job = FarJob("popen", str(far), here, tmp_path)
    job.finish()
    assert job.left == []
    assert not far.exists()
    assert json.loads((here / "a" / "result.json").read_text()) == {"verdict": "pass"}
    assert json.loads((here / "a" / "attempts" / "1" / "result.json").read_text()) == {"verdict": None}


@pytest.mark.skipif(which("ssh") is None, reason="needs OpenSSH's client")
def test_a_host_that_says_nothing_is_waited_for_once_and_once_more_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_benchflow.collect.far_job._BEGIN_SEC", 2.0)
    begun: list[Any] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        job = FarJob(f"ssh=-F none -p {silent.getsockname()[1]} 127.0.0.1", "jobs/job", tmp_path, tmp_path)
        connect = job._group.makegateway

        def counted(spec: str) -> Any:
            begun.append(spec)
            return connect(spec)

        monkeypatch.setattr(job._group, "makegateway", counted)
        with pytest.raises(RecordError, match=r"127\.0\.0\.1 has been silent for 2 s"):
            job.bring("a")
        with pytest.raises(RecordError, match="silent"):
            job.bring("b")
        assert len(begun) == 1
        with pytest.raises(RecordError, match="silent"):
            job.finish()
        assert len(begun) == 2
    assert b"127.0.0.1" not in b"".join(_commands_of_children())


def _commands_of_children() -> list[bytes]:
    found = [path.read_text("ascii").split() for path in Path("/proc/self/task").glob("*/children")]
    return [Path(f"/proc/{pid}/cmdline").read_bytes() for pids in found for pid in pids]
