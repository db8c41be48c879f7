"""Which rollouts are exported, which are not, and that each is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow import cli, registry
from pytest_benchflow.errors import UsageError
from pytest_benchflow.exporters._base import export
from tests.unit.rollouts import Talk, assistant, call, edit, three_steps, write_lines, write_rollout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pytest_benchflow.contracts import Conversation
    from pytest_benchflow.exporters._base import Export
    from pytest_benchflow.records.rundir import RunDir


def run(path: Path, **options: Any) -> Export:
    done = export("prime-sft", [path], path.parent / "out.jsonl", **options)
    assert done.exported + sum(done.skipped.values()) == done.seen
    return done


def remove_trajectory(rundir: RunDir) -> None:
    rundir.llm.unlink()


def tear_trajectory(rundir: RunDir) -> None:
    rundir.llm.write_bytes(rundir.llm.read_bytes()[:-100])


def binary_trajectory(rundir: RunDir) -> None:
    rundir.llm.write_bytes(os.urandom(4096))


def pipe_for_trajectory(rundir: RunDir) -> None:
    rundir.llm.unlink()
    os.mkfifo(rundir.llm)


def trajectory_elsewhere(rundir: RunDir) -> None:
    target = rundir.path.parent.parent / "elsewhere.jsonl"
    rundir.llm.rename(target)
    rundir.llm.symlink_to(target)


def list_for_result(rundir: RunDir) -> None:
    rundir.result.write_text("[1, 2]", "utf-8")


def no_result(rundir: RunDir) -> None:
    rundir.result.unlink()


def torn_result(rundir: RunDir) -> None:
    rundir.result.write_bytes(rundir.result.read_bytes()[:50])


def list_for_config(rundir: RunDir) -> None:
    rundir.config.write_text("[]", "utf-8")


def result_with(**changes: Any) -> Callable[[RunDir], None]:
    def change(rundir: RunDir) -> None:
        edit(rundir.result, lambda result: result.update(changes))

    return change


def reward_of_nan(rundir: RunDir) -> None:
    rundir.result.write_text(rundir.result.read_text("utf-8").replace('"reward": 1.0', '"reward": NaN'), "utf-8")


def truncated_end(rundir: RunDir) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("I think"), finish="length")
    write_lines(rundir.llm, talk.records)


def calls_without_tools(rundir: RunDir) -> None:
    write_lines(rundir.llm, [{**each, "request": without_tools(each["request"])} for each in three_steps()])


def without_tools(request: Mapping[str, Any]) -> dict[str, Any]:
    return {**request, "body": {key: value for key, value in request["body"].items() if key != "tools"}}


def empty_answer(rundir: RunDir) -> None:
    talk = Talk()
    talk.ask(assistant("", call("c1")))
    talk.ask(assistant("  "))
    write_lines(rundir.llm, talk.records)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (remove_trajectory, "no_exchanges"),
        (tear_trajectory, "unreadable_trajectory"),
        (binary_trajectory, "unreadable_trajectory"),
        (pipe_for_trajectory, "strange_files"),
        (trajectory_elsewhere, "strange_files"),
        (list_for_result, "unreadable_result"),
        (no_result, "unreadable_result"),
        (torn_result, "unreadable_result"),
        (list_for_config, "unreadable_config"),
        (reward_of_nan, "no_reward"),
        (result_with(rewards=None), "no_reward"),
        (result_with(rewards={"reward": True}), "no_reward"),
        (result_with(error="it crashed"), "agent_error"),
        (result_with(verifier_error="it crashed"), "verifier_error"),
        (result_with(partial_trajectory=True), "partial_trajectory"),
        (result_with(verdict="unhealthy"), "verdict_unhealthy"),
        (truncated_end, "partial_trajectory"),
        (calls_without_tools, "calls_without_tools"),
        (empty_answer, "empty_turn"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", ""),
)
def test_a_spoiled_rollout_costs_itself_only_and_is_counted(
    spoil: Callable[[RunDir], None], reason: str, tmp_path: Path
) -> None:
    spoil(write_rollout(tmp_path / "job" / "spoiled"))
    write_rollout(tmp_path / "job" / "whole")
    done = run(tmp_path / "job", manifest=tmp_path / "manifest.json")
    assert dict(done.skipped) == {reason: 1}
    assert (done.seen, done.exported, done.rows) == (2, 1, 1)
    manifest = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    assert (manifest["rollouts_seen"], manifest["rows_written"], manifest["skipped"]) == (2, 1, {reason: 1})
    assert [each["reason"] for each in manifest["left_out"]] == [reason]


@pytest.mark.parametrize(
    ("reward", "skipped"),
    [
        (1.0, {}),
        (0.5, {}),
        (0.4999, {"reward_too_low": 1}),
        (None, {"no_reward": 1}),
        ("1.0", {"no_reward": 1}),
    ],
)
def test_a_least_reward_leaves_out_less_and_none(reward: Any, skipped: dict[str, int], tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one", result_with={"rewards": {"reward": reward}, "error": None})
    assert dict(run(tmp_path / "job", min_reward=0.5).skipped) == skipped


def test_no_reward_is_said_before_other_faults(tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one", result_with={"rewards": None, "error": "it crashed"})
    assert dict(run(tmp_path / "job", min_reward=0.0).skipped) == {"no_reward": 1}


def test_rollouts_of_jobs_are_found_once_and_their_attempts_never(tmp_path: Path) -> None:
    for place in ("jobs/a/one", "jobs/a/two", "jobs/b/one", "jobs/a/one/attempts/1"):
        write_rollout(tmp_path / place)
    jobs = tmp_path / "jobs"
    done = export("prime-sft", [jobs, jobs / "a", jobs / "a" / "one"], tmp_path / "out.jsonl")
    assert (done.seen, done.rows) == (3, 3)
    for attempts in ("jobs/a/one/attempts", "jobs/a/one/attempts/1"):
        with pytest.raises(ValueError, match="holds no rollout"):
            export("prime-sft", [tmp_path / attempts], tmp_path / "out.jsonl")


def test_an_export_needs_no_row_and_changes_no_rollout(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path / "job" / "one")
    rundir.row.unlink()
    before = {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()}
    assert run(tmp_path / "job").rows == 1
    assert {path: path.read_bytes() for path in rundir.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("option", ["rows", "manifest"])
def test_no_directory_is_made_for_what_is_written(option: str, tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one")
    place = tmp_path / "mistyped" / "file"
    rows, manifest = (place, None) if option == "rows" else (tmp_path / "out.jsonl", place)
    with pytest.raises(UsageError, match=r"mistyped is no directory, and file was to be written there; make it first"):
        export("prime-sft", [tmp_path / "job"], rows, manifest=manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_a_file_inside_of_a_rollout_is_not_written(tmp_path: Path) -> None:
    rundir = write_rollout(tmp_path / "job" / "one")
    with pytest.raises(ValueError, match="lies in the rollout"):
        export("prime-sft", [tmp_path / "job"], rundir.path / "x")
    with pytest.raises(ValueError, match="lies in the rollout"):
        export("prime-sft", [tmp_path / "job"], tmp_path / "x", manifest=rundir.path / "manifest.json")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", ["pipe", "link", "link-to-a-file"])
@pytest.mark.parametrize("option", ["rows", "manifest"])
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, kind: str, option: str) -> None:
    (tmp_path / "file").write_text("kept")
    place = tmp_path / "place"
    os.mkfifo(place) if kind == "pipe" else place.symlink_to("file" if kind == "link-to-a-file" else "nothing")
    before = place.lstat()
    rows, manifest = (place, None) if option == "rows" else (tmp_path / "out.jsonl", place)
    with pytest.raises(UsageError, match="is a link, a pipe or a device"):
        export("openai", [write_rollout(tmp_path / "job" / "good").path], rows, manifest=manifest)
    after = place.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "out.jsonl").exists()


def test_rows_and_manifest_are_two_files(tmp_path: Path) -> None:
    place, twice = tmp_path / "out", tmp_path / "job" / ".." / "out"
    with pytest.raises(UsageError, match="name two files"):
        export("openai", [write_rollout(tmp_path / "job" / "good").path], place, manifest=twice)
    assert not place.exists()


def test_what_the_disk_refuses_is_said_in_a_sentence(tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one")
    with pytest.raises(ValueError, match="cannot be written"):
        export("prime-sft", [tmp_path / "job"], tmp_path / ("x" * 250))


def test_a_name_that_is_no_text_costs_nothing(tmp_path: Path) -> None:
    write_rollout(tmp_path / "jobs" / os.fsdecode(b"r\xff"))
    spoiled = write_rollout(tmp_path / "jobs" / os.fsdecode(b"s\xfe"))
    spoiled.result.unlink()
    done = run(tmp_path / "jobs", manifest=tmp_path / "manifest.json")
    assert (done.exported, dict(done.skipped)) == (1, {"unreadable_result": 1})
    (left_out,) = json.loads((tmp_path / "manifest.json").read_text("utf-8"))["left_out"]
    assert left_out["rollout"].endswith("jobs/s\ufffd")


def test_what_a_manifest_tells_of_faults_holds_no_secret(tmp_path: Path) -> None:
    key = "sk-proj-FAKE0000FAKE0000FAKE0000"
    write_rollout(tmp_path / "job" / "one", result_with={"error": f"401: {key} is not valid"})
    run(tmp_path / "job", manifest=tmp_path / "manifest.json")
    text = (tmp_path / "manifest.json").read_text("utf-8")
    assert key not in text
    assert "401: [REDACTED] is not valid" in text


class Lengths:
    """A format of somebody else's."""

    versions = ("1", "2")
    columns = None
    loaders = ()

    def rows(self, conversation: Conversation, version: str) -> Iterator[dict[str, Any]]:
        yield {"length": len(conversation.messages), "version": version}


@pytest.fixture
def lengths() -> Iterator[None]:
    registry.register("exporters", "my-lengths", Lengths())
    yield
    registry.forget_registered()


@pytest.mark.usefixtures("lengths")
@pytest.mark.parametrize(("asked", "version"), [(None, "2"), ("1", "1")], ids=["newest", "named"])
def test_a_registered_format_is_used_by_its_name(asked: str | None, version: str, tmp_path: Path) -> None:
    write_rollout(tmp_path / "job" / "one")
    export("my-lengths", [tmp_path / "job"], tmp_path / "out.jsonl", version=asked)
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8")) == {"length": 8, "version": version}


INSTALLED = """
class Lengths:
    versions, columns, loaders = (), None, ()

    def rows(self, conversation, version):
        yield {"length": len(conversation.messages)}


def pytest_benchflow_exporters():
    return {"lengths": Lengths()}
"""


def test_an_installed_package_offers_a_format(tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "lengths-1.0.dist-info"
    metadata.mkdir(parents=True)
    (tmp_path / "site" / "lengths.py").write_text(INSTALLED, "utf-8")
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lengths\nVersion: 1.0\nRequires-Dist: pytest-benchflow\n"
    )
    (metadata / "entry_points.txt").write_text("[pytest11]\nlengths = lengths\n")
    write_rollout(tmp_path / "job" / "one")
    command = [sys.executable, "-m", "pytest_benchflow.cli", "export", "lengths", "job", "--out", "out.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8")) == {"length": 8}


def test_the_command_prints_what_it_did_and_why_rollouts_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rollout(tmp_path / "job" / "one")
    write_rollout(tmp_path / "job" / "two", result_with={"error": "it crashed"})
    code = cli.main(["export", "openai", str(tmp_path / "job"), "--out", str(tmp_path / "out.jsonl")])
    assert code == 0
    out = capsys.readouterr().out
    assert "1 row from 1 of 2 rollouts" in out
    assert "left out: agent_error 1" in out


def test_the_command_fails_when_it_has_nothing_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rollout(tmp_path / "job" / "one", result_with={"error": "it crashed"})
    assert cli.main(["export", "openai", str(tmp_path / "job"), "--out", str(tmp_path / "out.jsonl")]) == 1
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert "0 rows from 0 of 1 rollout" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "sft", ".", "--out", "x"], "adp, atif, openai, prime-sft, trl"),
        (["export", "trl", "nowhere", "--out", "x"], "nowhere is no directory"),
        (["export", "trl", ".", "--out", "x"], "holds no rollout"),
    ],
    ids=["format", "path", "nothing there"],
)
def test_wrong_use_is_said_in_a_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
