"""Others' manifests are compared with our catalogue, an item for each agent; asked for, it is never passed over."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.catalog.load import CONTRACT_FIELDS, read_toml, shipped
from pytest_benchflow.catalog.write import export, manifest_text
from pytest_benchflow.collect.manifests import catalogue
from pytest_benchflow.report.mergeable import judge, read_junit
from tests.plugin.bench import outcomes
from tests.unit.catalog.test_compare import one_character_off

if TYPE_CHECKING:
    from pathlib import Path

    from tests.plugin.bench import Bench

NAMES = sorted(catalogue())


@pytest.fixture
def agents(bench: Bench) -> Path:
    """Return a directory with what `agents export` writes."""
    directory = bench.path / "agents"
    export(catalogue().values(), directory)
    return directory


def change(agents: Path, name: str, /, **changes: Any) -> None:
    """Write a manifest with some values changed."""
    file = agents / "acp" / name / "manifest.toml"
    file.write_text(manifest_text(read_toml(file) | changes), "utf-8")


def text_of(done: pytest.RunResult) -> str:
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    return done.stdout.str()


def fields_given() -> list[Any]:
    """Return each field that a manifest of the catalogue gives, once, by an agent that is quickly compared."""
    found: dict[str, str] = {}
    for name in ("baseline", *NAMES):
        manifest = shipped(name)
        assert manifest is not None
        for field, value in read_toml(manifest.file).items():
            if field in CONTRACT_FIELDS and value not in ("", [], {}):
                found.setdefault(field, name)
    return [pytest.param(name, field, id=f"{field}-of-{name}") for field, name in found.items()]


def test_what_export_writes_is_green(bench: Bench) -> None:
    assert bench.pytester.run(sys.executable, "-m", "pytest_benchflow", "agents", "export", "agents").ret == 0
    done = bench.run("--benchflow-manifests=agents", "-v")
    done.stdout.fnmatch_lines([f"collect* {len(NAMES)} items"])
    assert done.ret == 0
    assert outcomes(done) == {"passed": len(NAMES)}
    assert [line.split()[0] for line in done.outlines if "PASSED" in line] == [
        f"parity::same[{name}]" for name in NAMES
    ]


@pytest.mark.parametrize(("name", "field"), fields_given())
def test_one_character_of_a_field_is_red(bench: Bench, agents: Path, name: str, field: str) -> None:
    values = read_toml(agents / "acp" / name / "manifest.toml")
    change(agents, name, **{field: one_character_off(values[field])})
    done = bench.look("--benchflow-manifests=agents", "-k", f"[{name}]" if field != "name" else "parity")
    assert done.ret in (1, 4)
    if field in ("contract_version", "protocol"):
        assert f"{field} is {one_character_off(values[field])!r}" in done.stderr.str()
    elif field == "name":
        assert outcomes(done) == {"passed": len(NAMES) - 1, "failed": 2}
    else:
        assert f"{name}: 1 field differs: {field}" in text_of(done)


def test_the_header_names_the_other_side_with_commit_and_state(bench: Bench, agents: Path) -> None:
    git = ["git", "-C", str(agents), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    bench.look("--benchflow-manifests=agents", "-k", "baseline").stdout.fnmatch_lines(
        [
            f"parity: *agents (commit {commit})",
            f"parity: {len(NAMES)} agents there, {len(NAMES)} here, {len(NAMES)} in both; compared by bytes",
        ]
    )
    change(agents, "baseline", description="other")
    done = bench.look("--benchflow-manifests=agents", "--benchflow-parity=behaviour", "-k", "baseline")
    done.stdout.fnmatch_lines([f"parity: *agents (commit {commit}, with uncommitted changes)"])


def test_an_agent_that_one_side_lacks_is_an_item_of_its_own(bench: Bench, agents: Path) -> None:
    shutil.move(agents / "acp" / "baseline", agents / "acp" / "courier")
    file = agents / "acp" / "courier" / "manifest.toml"
    file.write_text(manifest_text(read_toml(file) | {"name": "courier"}), "utf-8")
    done = bench.look("--benchflow-manifests=agents", "-rA")
    assert done.ret == 1
    assert outcomes(done) == {"passed": len(NAMES) - 1, "failed": 2}
    text = text_of(done)
    assert "FAILED parity::only_here[baseline] " in text
    assert "FAILED parity::only_there[courier] " in text
    assert "baseline is missing there: our catalogue declares it in " in text
    assert "courier is missing here: " in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--benchflow-manifests=none"], "none is no directory", id="missing"),
        pytest.param(["--benchflow-manifests=empty"], "empty holds no manifest.toml", id="empty"),
        pytest.param(["--benchflow-manifests="], "--benchflow-manifests is ''; it takes a directory", id="no-value"),
        pytest.param(["--benchflow-manifests=broken"], "not TOML", id="broken"),
        pytest.param(["--benchflow-manifests=agents", "--benchflow-parity=close"], "bytes, behaviour", id="mode"),
        pytest.param(["--benchflow-manifests=agents", "--benchflow-sandbox=moon"], "moon", id="sandbox"),
        pytest.param(["--benchflow-parity=behaviour"], "--benchflow-manifests=DIR", id="mode-alone"),
    ],
)
def test_what_cannot_be_compared_is_refused(bench: Bench, agents: Path, arguments: list[str], says: str) -> None:
    (bench.path / "empty" / "acp").mkdir(parents=True)
    bench.write(bench.path / "broken", {"manifest.toml": "name = "})
    bench.refused(*arguments, says=says)


SKIP = "import pytest\ndef pytest_collection_modifyitems(items): items[0].add_marker(pytest.mark.skip)"
EXPECT = "import pytest\ndef pytest_collection_modifyitems(items): items[1].add_marker(pytest.mark.xfail)"
DROP = "def pytest_collection_modifyitems(items): items[:] = []"


@pytest.mark.parametrize(
    ("conftest", "arguments"),
    [
        pytest.param("", ["-k", "nobody"], id="selected-none"),
        pytest.param("", ["-m", "check"], id="other-marker"),
        pytest.param(DROP, [], id="items-dropped"),
        pytest.param(SKIP, [], id="skipped"),
        pytest.param(EXPECT, [], id="failure-expected"),
    ],
)
def test_parity_that_compares_nobody_fails(bench: Bench, agents: Path, conftest: str, arguments: list[str]) -> None:
    change(agents, NAMES[1], default_model="other")
    bench.pytester.makeconftest(conftest)
    done = bench.run("--benchflow-manifests=agents", *arguments)
    assert done.ret == 1
    assert "parity was asked for, and not compared were: " in text_of(done)


@pytest.mark.parametrize("arguments", [(), ("-k", "same"), ("-k", "same", "-n", "2")], ids=["all", "some", "workers"])
def test_an_agent_that_a_plugin_drops_is_missed_in_the_junit_file_too(
    bench: Bench, agents: Path, arguments: tuple[str, ...]
) -> None:
    bench.pytester.makeconftest("def pytest_collection_modifyitems(items): del items[0]")
    done = bench.run("--benchflow-manifests=agents", "--junit-xml=parity.xml", *arguments)
    assert done.ret == 1
    assert f"parity was asked for, and not compared were: {NAMES[0]}\n" in text_of(done)
    gate = judge([read_junit(bench.path / "parity.xml")], required=["parity::same*"])
    assert [blocker.text.partition(": failed: ")[0] for blocker in gate.blockers] == ["parity: parity::compared"]


def test_a_selection_by_name_is_enough(bench: Bench, agents: Path) -> None:
    done = bench.look("--benchflow-manifests=agents", "-k", "baseline")
    assert (done.ret, outcomes(done)) == (0, {"passed": 1})


def test_other_tests_run_beside_it_when_they_are_named(bench: Bench, agents: Path) -> None:
    bench.pytester.makepyfile(test_other="def test_other(): pass")
    assert outcomes(bench.look("--benchflow-manifests=agents")) == {"passed": len(NAMES)}
    assert outcomes(bench.look("--benchflow-manifests=agents", "test_other.py")) == {"passed": len(NAMES) + 1}


def test_no_code_of_the_other_side_is_imported(bench: Bench, agents: Path) -> None:
    trap = 'raise SystemExit("code of the other side was imported")\n'
    bench.write(agents, {"conftest.py": trap, "acp/baseline/conftest.py": trap, "acp/baseline/test_x.py": trap})
    assert outcomes(bench.run("--benchflow-manifests=agents")) == {"passed": len(NAMES)}


def test_the_ini_value_adds_the_items_to_a_run(bench: Bench, agents: Path) -> None:
    bench.ini("benchflow_manifests = agents")
    bench.pytester.makepyfile(test_other="def test_other(): pass")
    assert outcomes(bench.look()) == {"passed": len(NAMES) + 1}


def test_workers_share_the_items(bench: Bench, agents: Path) -> None:
    change(agents, "baseline", default_model="other")
    done = bench.run("--benchflow-manifests=agents", "-n", "2", "--junit-xml=parity.xml")
    assert done.ret == 1
    assert outcomes(done) == {"passed": len(NAMES) - 1, "failed": 1}
    assert "not compared" not in text_of(done)
    gate = judge([read_junit(bench.path / "parity.xml")], required=["parity::*"], external=["parity"])
    assert [blocker.external for blocker in gate.blockers] == [True]


# Changes of one field: whether behaviour is still the same, and what is said of it.
ONLY_TEXT = {
    "launch": ("launch_cmd", "# Another word.\n{}", True, "(same behaviour)"),
    "description": ("description", "{}.", True, "(same behaviour)"),
    "other-program": ("launch_cmd", "{} --quiet", False, "(other behaviour)"),
    "installation": ("install_cmd", "{} # other", False, "1 field differs: install_cmd\n"),
}


@pytest.mark.parametrize("form", ONLY_TEXT)
def test_only_text_is_red_by_bytes_and_green_by_behaviour(bench: Bench, agents: Path, form: str) -> None:
    field, text, same, note = ONLY_TEXT[form]
    change(agents, "baseline", **{field: text.format(read_toml(agents / "acp/baseline/manifest.toml")[field])})
    for mode, code in (("bytes", 1), ("behaviour", 0 if same else 1)):
        done = bench.look("--benchflow-manifests=agents", f"--benchflow-parity={mode}", "-k", "baseline", "-rP")
        assert done.ret == code
        assert note in text_of(done)


def test_drift_that_weakens_is_named_first(bench: Bench, agents: Path) -> None:
    weaker = f"export BENCHFLOW_REASONING_EFFORT=low\n{read_toml(agents / 'acp/baseline/manifest.toml')['launch_cmd']}"
    change(agents, "baseline", launch_cmd=weaker, install_timeout=899)
    done = bench.look("--benchflow-manifests=agents", "--benchflow-parity=behaviour", "-k", "baseline")
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "baseline: 2 fields differ: launch_cmd, install_timeout (other behaviour)",
            "weakens: timeout lowered there: 899 s instead of 900 s",
            "weakens: effort lowered there",
            "here:  *baseline.toml",
            "there: *agents/acp/baseline/manifest.toml",
            "launch_cmd: line 1, column 3",
            "  here:  ex▸ec·python3*",
            "  there: ex▸port·BENCHFLOW*",
            "effort max: call 1, variable BENCHFLOW_REASONING_EFFORT",
            "  here:  max",
            "  there: low",
            "  weakens: effort lowered there",
        ]
    )


def test_behaviour_that_cannot_be_run_is_undecided_and_red(bench: Bench, agents: Path) -> None:
    bench.pytester.makeconftest(
        """
        class Broken:
            name = "broken"
            dies_with_process = True
            def available(self): return "it has no power"
            def unsupported(self, task): return None

        def pytest_benchflow_sandboxes():
            return {"broken": Broken()}
        """
    )
    change(agents, "baseline", launch_cmd="exec python3 other.py")
    asked = ("--benchflow-manifests=agents", "--benchflow-parity=behaviour", "--benchflow-sandbox=broken")
    done = bench.run(*asked, "-k", "baseline")
    assert (done.ret, outcomes(done)) == (1, {"failed": 1})
    assert "behaviour undecided: it has no power" in text_of(done)
