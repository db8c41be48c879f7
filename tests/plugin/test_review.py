"""--benchflow-review and a run's path: rollouts on disk as files, their checks as items, and a gate over them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.checks._baseline import SHIPPED
from pytest_benchflow.records.audit import write_audit
from tests.plugin.bench import TRAP, outcomes
from tests.unit.rollouts import edit, write_rollout

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.records.rundir import RunDir
    from tests.plugin.bench import Bench

ONE = "jobs/a/good/result.json::check_tokens_add_up"


@pytest.fixture
def job(bench: Bench) -> Path:
    """A job of this plugin with a healthy rollout and one whose events are gone."""
    path = bench.path / "jobs" / "a"
    write_rollout(path / "good")
    write_rollout(path / "lost").acp.unlink()
    bench.write(path, {"job.json": '{"pytest_benchflow": "0.1.0"}'})
    return path


def snapshot(path: Path) -> dict[str, int]:
    return {str(each.relative_to(path)): each.stat().st_mtime_ns for each in path.rglob("*")}


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_every_check_of_every_rollout_is_an_item(bench: Bench, job: Path, workers: str) -> None:
    before = snapshot(job.parent)
    done = bench.run("--benchflow-review=jobs", "-n", workers, "-v")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    counts = outcomes(done)
    assert sum(counts.values()) == 2 * len(SHIPPED)
    assert counts["failed"] == 1
    done.stdout.fnmatch_lines(
        [
            "*acp_trajectory_readable*",
            "trajectory/acp_trajectory.jsonl is missing",
            "in *jobs/a/lost",
            "*= review =*",
            "unhealthy (capture): jobs/a/lost",
            "2 rollouts: 1 healthy, 1 unhealthy (1 capture)",
            "1/2 healthy · 660 tokens · *",
        ]
    )
    assert snapshot(job.parent) == before


@pytest.mark.parametrize("argument", ["jobs/a/good", "jobs/a/good/result.json", "--benchflow-review=jobs/a/good"])
def test_a_rollout_is_named_like_a_test_file(bench: Bench, job: Path, argument: str) -> None:
    ids = bench.ids(argument)
    assert ids == [f"jobs/a/good/result.json::check_{name}" for name in ids_in_order(ids)]
    assert len(ids) == len(SHIPPED)
    done = bench.look(argument, "-p", "no:cacheprovider")
    assert done.ret == 0
    assert "failed" not in outcomes(done)


def ids_in_order(ids: list[str]) -> list[str]:
    names = [each.partition("::check_")[2] for each in ids]
    assert set(names) == set(SHIPPED)
    return names


def test_a_job_is_reviewed_by_its_path_and_a_directory_of_jobs_is_not(bench: Bench, job: Path) -> None:
    assert len(bench.ids("jobs/a")) == 2 * len(SHIPPED)
    assert bench.ids("jobs") == []
    assert bench.ids() == []


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["jobs/a", "-k", "tokens_add_up"], 2),
        (["jobs/a", "-k", "good and tokens_add_up"], 1),
        ([ONE], 1),
        (["jobs/a", "-m", "check"], 2 * len(SHIPPED)),
        (["jobs/a/good", f"--deselect={ONE}"], len(SHIPPED) - 1),
    ],
    ids=["k", "k-of-one-rollout", "id", "m", "deselect"],
)
def test_checks_are_chosen_as_tests_are(bench: Bench, job: Path, arguments: list[str], count: int) -> None:
    assert len(bench.ids(*arguments)) == count


def test_what_was_left_out_by_name_is_not_missed(bench: Bench, job: Path) -> None:
    assert bench.look("jobs/a", "-k", "tokens_add_up").ret == 0
    assert bench.look("jobs/a/good", f"--deselect={ONE}").ret == 0
    assert bench.run("jobs/a", "-n", "2", "-k", "tokens_add_up").ret == 0
    assert bench.look(ONE, "jobs/a/lost", "-k", "not acp_trajectory_readable").ret == 0


def test_last_failed_and_exitfirst(bench: Bench, job: Path) -> None:
    assert outcomes(bench.run("jobs/a"))["failed"] == 1
    assert outcomes(bench.run("jobs/a", "--lf")) == {"failed": 1}
    again = bench.run("jobs/a", "-x")
    assert outcomes(again)["failed"] == 1
    again.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    again.stdout.no_fnmatch_line("*did not run*")
    write_rollout(job / "lost")
    assert outcomes(bench.run("jobs/a", "--lf")) == {"passed": 1}


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_conftest_that_drops_or_skips_a_check_fails_the_gate(bench: Bench, job: Path, workers: str) -> None:
    bench.pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if item.name != "check_reward_is_finite"]
            for item in items:
                if item.name == "check_tokens_add_up":
                    item.add_marker(pytest.mark.skip(reason="later"))
                if item.name == "check_timing_recorded":
                    item.add_marker(pytest.mark.xfail(reason="known", strict=False))

        def pytest_runtest_call(item):
            if item.name == "check_tool_calls_counted":
                pytest.skip("not today")
        """
    )
    done = bench.run("--benchflow-review=jobs/a/good", "-n", workers)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    assert "failed" not in outcomes(done)
    done.stdout.fnmatch_lines(
        [
            "shipped checks did not run, and no -k or --deselect left them out, so this review fails:",
            "  reward_is_finite: 1 of 1 rollouts",
            "  timing_recorded: 1 of 1 rollouts",
            "  tokens_add_up: 1 of 1 rollouts",
            "  tool_calls_counted: 1 of 1 rollouts",
        ]
    )


@pytest.mark.parametrize("workers", ["0", "2"], ids=["serial", "xdist"])
def test_a_name_that_is_left_out_excuses_no_other(bench: Bench, job: Path, workers: str) -> None:
    bench.pytester.makeconftest(
        """
        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if item.name != "check_reward_is_finite"]
        """
    )
    done = bench.run("--benchflow-review=jobs/a/good", "-n", workers, "-k", "not tokens_add_up")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["  reward_is_finite: 1 of 1 rollouts"])
    done.stdout.no_fnmatch_line("  tokens_add_up: *")


def test_a_marker_is_no_name(bench: Bench, job: Path) -> None:
    bench.pytester.makeconftest(
        """
        import pytest

        def pytest_configure(config):
            config.addinivalue_line("markers", "slow: takes long")

        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(items):
            for item in items:
                if item.name == "check_tokens_add_up":
                    item.add_marker("slow")
        """
    )
    done = bench.run("--benchflow-review=jobs/a/good", "-m", "not slow")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["  tokens_add_up: 1 of 1 rollouts"])


def test_a_rollout_that_is_dropped_whole_fails_the_gate(bench: Bench, job: Path) -> None:
    (job / "lost").rename(job / "z-lost")
    bench.pytester.makeconftest(
        """
        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if "z-lost" not in item.nodeid]
        """
    )
    done = bench.run("--benchflow-review=jobs")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["  acp_trajectory_readable: 1 of 2 rollouts", "  and * other checks"])


def test_what_does_not_apply_is_skipped_with_its_reason(bench: Bench, job: Path) -> None:
    edit_config(write_rollout(job / "good"))
    done = bench.look("jobs/a/good", "-rs")
    assert done.ret == 0
    done.stdout.fnmatch_lines(["SKIPPED * no_request_left_open does not apply: not made by this plugin"])


def edit_config(rundir: RunDir) -> None:
    edit(rundir.config, lambda config: config.pop("plugin_version"))


def test_checks_of_a_conftest_count_and_a_warning_passes(bench: Bench, job: Path) -> None:
    bench.pytester.makeconftest(
        """
        from pytest_benchflow import check

        @check(severity="warning", category="accounting")
        def check_is_cheap(rollout):
            assert False, "it cost something"

        @check()
        def check_is_short(rollout):
            assert len(rollout.exchanges) < 2, f"{len(rollout.exchanges)} exchanges"

        def pytest_benchflow_checks():
            return {"is_cheap": check_is_cheap, "is_short": check_is_short}
        """
    )
    done = bench.run("--benchflow-review=jobs/a/good")
    assert outcomes(done)["failed"] == 1
    assert outcomes(done)["warnings"] == 1
    done.stdout.fnmatch_lines(["3 exchanges", "*CheckWarning: is_cheap: it cost something"])
    assert bench.run("--benchflow-review=jobs/a/good", "-k", "is_cheap").ret == 0


def test_the_engine_runs_once_for_a_rollout(bench: Bench, job: Path) -> None:
    bench.pytester.makeconftest(
        """
        from pathlib import Path

        def check_counted(rollout):
            with Path("runs.txt").open("a") as file:
                file.write(f"{rollout.path.name}\\n")

        def pytest_benchflow_checks():
            return {"counted": check_counted}
        """
    )
    bench.run("--benchflow-review=jobs", "-n", "2")
    assert sorted((bench.path / "runs.txt").read_text("utf-8").split()) == ["good", "lost"]


def test_rows_can_be_judged_as_if_rebuilt(bench: Bench, job: Path) -> None:
    (job / "good" / "results.jsonl").unlink()
    assert bench.look("jobs/a/good").ret == 1
    assert bench.look("jobs/a/good", "--benchflow-review-rebuild").ret == 0
    assert not (job / "good" / "results.jsonl").exists()


def test_the_expected_commit_is_a_check_of_its_own(bench: Bench, job: Path) -> None:
    done = bench.look("jobs/a/good", "--benchflow-expect-commit=0123456")
    assert outcomes(done)["failed"] == 1
    done.stdout.fnmatch_lines(["*check_source_is_the_expected_commit*", "*names no source commit; 0123456 is expected"])
    bench.refused("jobs/a/good", "--benchflow-expect-commit=main", says="at least 7 hexadecimal digits")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--benchflow-review=",), "--benchflow-review is ''; it takes a rollout"),
        (("jobs/a/good", "--benchflow-expect-commit="), "--benchflow-expect-commit is ''; it takes at least 7"),
        (("--benchflow-expect-commit=0123456",), "--benchflow-expect-commit needs a review, and there is none"),
        (("--benchflow-review-rebuild",), "--benchflow-review-rebuild needs a review, and there is none"),
    ],
    ids=["empty-path", "empty-commit", "commit-alone", "rebuild-alone"],
)
def test_a_gate_that_would_stay_open_is_refused(bench: Bench, job: Path, arguments: tuple[str, ...], says: str) -> None:
    bench.refused(*arguments, says=says)


def test_the_ini_value_is_relative_to_the_root(bench: Bench, job: Path) -> None:
    bench.ini("benchflow_review = jobs/a/good")
    bench.pytester.makepyfile("def test_pass(): pass")
    assert len(bench.ids()) == len(SHIPPED)


def test_junit_says_what_a_rollout_came_to(bench: Bench, job: Path) -> None:
    write_audit(write_rollout(job / "good"), verdict="quarantine", by="Mia", note="too easy")
    done = bench.run("--benchflow-review=jobs/a/good", "--junitxml=out.xml")
    done.stdout.fnmatch_lines(["audit: jobs/a/good: quarantine, by Mia, *: too easy"])
    root = ET.parse(bench.path / "out.xml").getroot()  # noqa: S314 - written by the run above
    (value,) = (each.get("value") or "" for each in root.iter("property"))
    told = json.loads(value)
    assert told["summary"]["verdict"] == "pass"
    assert {*told["ran"], *told["not_applicable"]} == set(SHIPPED)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nothing", "does not exist"),
        ("jobs/a/good/result.json", "is no directory"),
        ("empty", "holds no rollout"),
    ],
    ids=["missing", "file", "empty"],
)
def test_nothing_to_review_is_refused(bench: Bench, job: Path, path: str, says: str) -> None:
    (bench.path / "empty").mkdir()
    bench.refused(f"--benchflow-review={path}", says=says)


def test_no_file_of_a_run_is_imported(bench: Bench, job: Path) -> None:
    places = ["", "good", "good/artifacts", "good/test_x", "test_y", "good/trajectory", "good/verifier"]
    for place in places:
        names = ("conftest.py", "test_trap.py", "__init__.py")
        bench.write(job / place, dict.fromkeys(names, TRAP))
    for argument in ("jobs/a", "jobs/a/good", "--benchflow-review=jobs", "--benchflow-review=jobs/a/good"):
        done = bench.run(argument, "-k", "tokens_add_up")
        assert "passed" in outcomes(done), done.stdout.str() + done.stderr.str()
        assert done.ret == 0


def test_no_ini_file_of_a_run_configures_pytest(bench: Bench, job: Path) -> None:
    bench.write(job / "good", {"pytest.ini": "[pytest]\naddopts = -k nothing\n"})
    done = bench.run("jobs/a/good")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*pytest.ini lies in a run, and nothing in a run configures pytest*"])
    assert bench.run("--benchflow-review=jobs/a/good").ret == 0


def test_pytest_writes_nothing_into_a_run(bench: Bench, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(job)
    monkeypatch.chdir(job)
    done = bench.run("good")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*is in a run, where pytest would write its own files; start it from outside"])
    assert snapshot(job) == before


def test_a_link_out_of_a_rollout_fails_one_check_and_reads_nothing(bench: Bench, job: Path) -> None:
    (job / "good" / "config.json").unlink()
    (job / "good" / "config.json").symlink_to("/etc/hostname")
    done = bench.look("jobs/a/good")
    assert outcomes(done) == {"failed": 1, "skipped": len(SHIPPED) - 1}
    done.stdout.fnmatch_lines(["config.json is a link that leads out of the rollout"])


def test_a_rollout_without_a_result_is_unhealthy(bench: Bench, job: Path) -> None:
    (job / "good" / "result.json").unlink()
    done = bench.look("--benchflow-review=jobs/a/good")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["FAILED jobs/a/good/config.json::check_result_readable*"])


def test_a_rollout_that_the_job_planned_and_that_is_gone_fails(bench: Bench, job: Path) -> None:
    plan = {"versions": {"pytest_benchflow": "0.1.0"}, "matrix": [{"rollout": name} for name in ("good", "gone")]}
    (job / "job.json").write_text(json.dumps(plan), "utf-8")
    done = bench.look("jobs/a", "-k", "gone")
    assert outcomes(done) == {"failed": 1, "skipped": len(SHIPPED) - 1}
    done.stdout.fnmatch_lines(["the job planned this rollout, and nothing of it is here"])
    assert bench.look("jobs/a/good").ret == 0


def test_a_name_that_a_terminal_obeys_is_refused(bench: Bench, job: Path) -> None:
    write_rollout(job / "\x1b[31mred")
    bench.refused("--benchflow-review=jobs", says=r"\x1b[31mred")
