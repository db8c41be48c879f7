"""Which rollouts are published, which are not, and that each is counted; nothing here talks to a hub."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import UsageError
from pytest_benchflow.publish.choose import Rules
from pytest_benchflow.publish.naming import DEFAULT, Template
from pytest_benchflow.publish.plan import Plan, make_plan
from pytest_benchflow.records.audit import write_audit
from pytest_benchflow.records.redact import Redactor
from pytest_benchflow.report.review import checks_for
from tests.unit.rollouts import Talk, assistant, call, edit, write_rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir

# Shaped like keys, and of nobody.
KEY = "sk-" + "proj-9fJ2kLmQ8rTz4VbN1xYw6CdE3gH5"
NAMED = "REPORT_API_KEY=" + "q8Zr41Lw0PxTn6Vd93Ks"


def plan_of(path: Path, *secrets: str, template: str = DEFAULT, **rules: Any) -> Plan:
    plan = make_plan(path, Rules(Template.of(template), checks_for(), **rules), Redactor(secrets))
    counts = plan.counts
    assert counts["rollouts"] + counts["canaries"] + sum(counts["left_out"].values()) == counts["seen"]
    return plan


def answered(word: str, path: Path, **options: Any) -> RunDir:
    """Write a healthy rollout whose raw trace is its own."""
    talk = Talk()
    talk.ask(assistant(f"I look at {word}.", call("c1", cmd="ls")))
    talk.ask(assistant("", call("c2", "finish", message="Fixed.")))
    return write_rollout(path / word, talk.records, **options)


def lose_events(rundir: RunDir) -> None:
    rundir.acp.unlink()


def launder(rundir: RunDir) -> None:
    edit(rundir.result, lambda result: result.update(verdict="pass", verdict_category=None))
    rundir.row.unlink()


def confess(rundir: RunDir) -> None:
    edit(rundir.result, lambda result: result.update(verdict="unhealthy", verdict_category="infra"))


def link_out(rundir: RunDir) -> None:
    (rundir.path.parent.parent / "elsewhere.txt").write_text("not of this rollout", "utf-8")
    (rundir.path / "agent").mkdir()
    (rundir.path / "agent" / "log.txt").symlink_to(rundir.path.parent.parent / "elsewhere.txt")


def link_the_result(rundir: RunDir) -> None:
    rundir.result.rename(rundir.path / "real.json")
    rundir.result.symlink_to("real.json")


def quarantine(rundir: RunDir) -> None:
    write_audit(rundir, verdict="quarantine", by="Mia", note="guessed the answer")


def call_unfit(rundir: RunDir) -> None:
    write_audit(rundir, verdict="not-publishable", by="Mia", note="")


def outdate_the_audit(rundir: RunDir) -> None:
    write_audit(rundir, verdict="publishable", by="Mia", note="")
    edit(rundir.audit, lambda audit: audit.update(trace_sha256="0" * 64))


def tear_the_audit(rundir: RunDir) -> None:
    rundir.audit.write_text("{", "utf-8")


def log_a_secret(rundir: RunDir) -> None:
    rundir.artifacts.mkdir()
    (rundir.artifacts / "env.txt").write_text(f"{NAMED}\n", "utf-8")


def name_a_secret(rundir: RunDir) -> None:
    rundir.artifacts.mkdir()
    (rundir.artifacts / KEY).write_text("", "utf-8")


LEFT = [
    (lose_events, "unhealthy_capture"),
    (launder, "unhealthy_capture"),
    (confess, "unhealthy_infra"),
    (link_out, "unhealthy_capture"),
    (link_the_result, "unhealthy_capture"),
    (quarantine, "audit_quarantine"),
    (call_unfit, "audit_not-publishable"),
    (outdate_the_audit, "audit_void"),
    (tear_the_audit, "audit_void"),
    (log_a_secret, "secret"),
    (name_a_secret, "secret"),
]


@pytest.mark.parametrize(("spoil", "reason"), LEFT, ids=[spoil.__name__ for spoil, _ in LEFT])
def test_what_stays_here(tmp_path: Path, spoil: Callable[[RunDir], None], reason: str) -> None:
    good, bad = answered("good", tmp_path / "ramp"), answered("bad", tmp_path / "ramp")
    assert plan_of(tmp_path / "ramp").counts["rollouts"] == 2
    spoil(bad)
    plan = plan_of(tmp_path / "ramp")
    assert [unit.chosen.root for unit in plan.units] == [good.path]
    assert plan.counts["left_out"] == {reason: 1}
    assert [each.root for each in plan.left_out] == [bad.path]
    assert plan.left_out[0].detail
    assert "benchflow-publish-" not in plan.left_out[0].detail, "where it was copied to is nowhere any more"
    assert KEY not in plan.left_out[0].detail
    assert not any("bad" in path for path in plan.files)


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_rollouts_without_a_model_stay_here(tmp_path: Path, agent: str) -> None:
    names = {"agent": agent, "agent_name": agent, "model": "none", "proxy": None}
    rundir = write_rollout(tmp_path / agent, [], result_with=names, config_with={"agent": agent, "model": "none"})
    rundir.llm.unlink()
    plan = plan_of(tmp_path)
    assert plan.counts["left_out"] == {"no_model": 1}, plan.left_out
    assert not plan.files


def test_only_audited_rollouts_on_request(tmp_path: Path) -> None:
    audited, _ = answered("one", tmp_path), answered("two", tmp_path)
    write_audit(audited, verdict="publishable", by="Mia", note="by the book")
    plan = plan_of(tmp_path, require_audit=True)
    assert [unit.chosen.root for unit in plan.units] == [audited.path]
    assert plan.counts["left_out"] == {"no_audit": 1}
    manifest = json.loads(plan.units[0].manifest)
    assert manifest["audit"] | {"at": None} == {
        "verdict": "publishable",
        "by": "Mia",
        "note": "by the book",
        "at": None,
        "void": None,
    }


def test_a_rollout_that_is_still_written_stays_here(tmp_path: Path) -> None:
    rundir = answered("one", tmp_path)
    with rundir.lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert plan_of(tmp_path).counts["left_out"] == {"running": 1}
    assert plan_of(tmp_path).counts["rollouts"] == 1


def test_a_planned_rollout_that_left_nothing_is_counted(tmp_path: Path) -> None:
    answered("one", tmp_path / "ramp")
    job = {"versions": {"pytest_benchflow": "0.1.0"}, "matrix": [{"rollout": "one"}, {"rollout": "two"}]}
    (tmp_path / "ramp" / "job.json").write_text(json.dumps(job), "utf-8")
    plan = plan_of(tmp_path / "ramp")
    assert plan.counts["left_out"] == {"missing": 1}
    assert plan.counts["seen"] == 2


def test_known_secrets_are_taken_out_of_every_file_and_counted(tmp_path: Path) -> None:
    secret = "correct horse battery"
    rundir = answered("one", tmp_path)
    for name, text in {
        "agent/log.txt": f"login {secret}\n{KEY}\n",
        "verifier/out.bin": f"\xff\x00{secret}",
        "artifacts/deep/er/note.json": json.dumps({"said": secret}).replace("c", "\\u0063"),
    }.items():
        (rundir.path / name).parent.mkdir(parents=True, exist_ok=True)
        (rundir.path / name).write_bytes(text.encode("latin-1"))
    before = (rundir.path / "agent/log.txt").read_bytes()
    plan = plan_of(tmp_path, secret)
    assert plan.units[0].chosen.redacted == {
        "agent/log.txt": 2,
        "artifacts/deep/er/note.json": 1,
        "verifier/out.bin": 1,
    }
    assert plan.counts["redactions"] == 4
    assert json.loads(plan.units[0].manifest)["redactions"] == plan.units[0].chosen.redacted
    assert (rundir.path / "agent/log.txt").read_bytes() == before, "what is on disk stays as it is"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_secrets_in_wide_characters_are_found_too(tmp_path: Path, encoding: str) -> None:
    secret = "correct horse battery"
    rundir = answered("one", tmp_path)
    rundir.artifacts.mkdir()
    text = f"字A login {secret} A字\n"
    (rundir.artifacts / "log.txt").write_bytes(text.encode(encoding) + b"\xff\x00x")
    plan = plan_of(tmp_path, secret)
    assert plan.units[0].chosen.redacted == {"artifacts/log.txt": 1}
    (file,) = (each for each in plan.units[0].chosen.files if each.path == "artifacts/log.txt")
    whole = text.replace(secret, "[REDACTED]").encode(encoding) + b"\xff\x00x"
    assert file.sha256 == hashlib.sha256(whole).hexdigest(), "nothing else is changed"
    (rundir.artifacts / "log.txt").write_bytes(f"{NAMED}\n".encode(encoding))
    assert plan_of(tmp_path).left_out[0].detail == "artifacts/log.txt: a value named a secret"
    assert plan_of(tmp_path, redact=True).units[0].chosen.redacted == {"artifacts/log.txt": 1}


def test_what_looks_like_a_secret_goes_redacted_only_on_request(tmp_path: Path) -> None:
    log_a_secret(answered("one", tmp_path))
    assert plan_of(tmp_path).left_out[0].detail == "artifacts/env.txt: a value named a secret"
    plan = plan_of(tmp_path, redact=True)
    assert plan.units[0].chosen.redacted == {"artifacts/env.txt": 1}


def test_an_audited_trace_never_goes_in_another_form(tmp_path: Path) -> None:
    rundir = answered("one", tmp_path)
    assert plan_of(tmp_path, "parse.py").counts["rollouts"] == 1
    write_audit(rundir, verdict="publishable", by="Mia", note="")
    plan = plan_of(tmp_path, "I look at one")
    assert plan.counts["left_out"] == {"audit_void": 1}
    assert "would go without them" in plan.left_out[0].detail


def test_files_that_cannot_be_searched_or_are_no_records_stay_here(tmp_path: Path) -> None:
    rundir = answered("one", tmp_path)
    rundir.artifacts.mkdir()
    (rundir.artifacts / "packed.gz").write_bytes(gzip.compress(KEY.encode()))
    (rundir.artifacts / "link").symlink_to("/etc/passwd")
    (rundir.artifacts / "within").symlink_to(rundir.path / "agent")
    os.mkfifo(rundir.artifacts / "pipe")
    (rundir.artifacts / ".git").mkdir()
    (rundir.artifacts / ".git" / "config").write_text("", "utf-8")
    (rundir.artifacts / "ok.txt").write_text("kept", "utf-8")
    (rundir.path / "attempts" / "1").mkdir(parents=True)
    (rundir.path / "attempts" / "1" / "config.json").write_text("{}", "utf-8")
    (rundir.path / "sandbox").mkdir()
    (rundir.path / "sandbox" / "kept.txt").write_text("a kept sandbox", "utf-8")
    unit = plan_of(tmp_path).units[0]
    assert unit.chosen.left == {
        "artifacts/.git/config": "the hub takes no file in such a directory",
        "artifacts/link": "a link",
        "artifacts/packed.gz": "packed, so that it cannot be searched for secrets",
        "artifacts/pipe": "no plain file",
        "artifacts/within": "a link",
    }
    names = {file.path for file in unit.chosen.files}
    assert {name for name in names if name.startswith(("artifacts", "attempts", "sandbox"))} == {"artifacts/ok.txt"}


def test_what_would_not_be_healthy_without_its_secrets_stays_here(tmp_path: Path) -> None:
    answered("one", tmp_path)
    plan = plan_of(tmp_path, "assistant")
    assert [reason.rpartition("_")[0] for reason in plan.counts["left_out"]] == ["unhealthy_as_published"]


def test_canaries_go_apart_and_are_not_counted(tmp_path: Path) -> None:
    answered("one", tmp_path, config_with={"canary": True})
    answered("two", tmp_path, config_with={"canary": "yes"})
    plan = plan_of(tmp_path)
    assert [unit.chosen.place.split("/")[3] for unit in plan.units] == ["canaries", "no-skill"]
    assert (plan.counts["rollouts"], plan.counts["canaries"]) == (1, 1)
    with pytest.raises(UsageError, match=r"is a canary, which goes apart.*a part \{canaries\}"):
        plan_of(tmp_path, template="{task}__{id8}")


def test_a_copy_stays_here(tmp_path: Path) -> None:
    answered("one", tmp_path, config_with={"rollout_name": "one"})
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    plan = plan_of(tmp_path)
    assert [unit.chosen.root.name for unit in plan.units] == ["one"]
    assert plan.counts["left_out"] == {"copy": 1}


def test_the_same_rollout_twice_is_refused(tmp_path: Path) -> None:
    answered("one", tmp_path / "a")
    answered("one", tmp_path / "b")
    with pytest.raises(UsageError, match=r"a/one and .*b/one would both go to progress/tasks/.*__[0-9a-f]{8}: they"):
        plan_of(tmp_path)


def test_ids_and_manifests_stay_the_same_and_hold_what_decides(tmp_path: Path) -> None:
    rundir = answered("one", tmp_path / "ramp", config_with={"session_id": "s1", "task_digest": "d" * 64})
    job = {"session_id": "s1", "digests": {"agents": {"baseline": "e" * 64}}}
    (tmp_path / "ramp" / "job.json").write_text(json.dumps(job), "utf-8")
    first, second = plan_of(tmp_path / "ramp"), plan_of(tmp_path / "ramp")
    assert (first.place, first.manifest, first.files) == (second.place, second.manifest, second.files)
    (entry,) = json.loads(first.manifest)["rollouts"]
    assert (entry["task_digest"], entry["agent_digest"]) == ("d" * 64, "e" * 64)
    assert entry["path"].endswith(f"__{entry['id'][:8]}")
    write_audit(rundir, verdict="publishable", by="Mia", note="")
    assert plan_of(tmp_path / "ramp").units[0].chosen.place == first.units[0].chosen.place


def test_the_datasets_name(tmp_path: Path) -> None:
    answered("one", tmp_path, config_with={"task_path": "/data/skillsbench/csv-report"})
    assert plan_of(tmp_path).units[0].chosen.place.startswith("progress/skillsbench/")
    assert plan_of(tmp_path, dataset="Other set").place.startswith("progress/Other-set/manifests/")


def test_an_attempt_is_refused(tmp_path: Path) -> None:
    rundir = answered("one", tmp_path)
    answered("1", rundir.attempts)
    with pytest.raises(UsageError, match="an earlier attempt, which is never published"):
        plan_of(rundir.attempts / "1")
