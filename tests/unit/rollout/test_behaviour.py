"""Two launch commands run with stubs: text that has no effect is told from drift, and each kind of drift is found."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.catalog.compare import HERE, THERE
from pytest_benchflow.catalog.load import Manifest, shipped
from pytest_benchflow.rollout import behaviour
from pytest_benchflow.rollout.behaviour import ROWS, Behaviour, Launches, Row, compare_behaviour, judge, launch
from pytest_benchflow.sandboxes.local import backend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Checks, a file of settings, variables, a login and an agent: what real launch commands are made of.
LAUNCH = """\
set -eu
dir=${BENCHFLOW_AGENT_DIR:-/opt/benchflow/agents/courier}
limit=${LLM_TIMEOUT:-$BENCHFLOW_LLM_TIMEOUT}
case $limit in
'' | *[!0-9.]*) echo "courier: LLM_TIMEOUT is no number" >&2; exit 2 ;;
esac
if [ -z "$COURIER_KEY" ]; then echo "courier: no key" >&2; exit 3; fi
effort=${BENCHFLOW_REASONING_EFFORT:-medium}
umask 077
mkdir -p "$HOME/.courier"
work=$(mktemp -d)
printf '{"url": "%s", "effort": "%s", "timeout": %s}' "$COURIER_URL" "$effort" "$limit" >"$HOME/.courier/settings.json"
printf '%s' "$COURIER_KEY" | "$dir/bin/courier" login --stdin >/dev/null 2>&1 || true
export COURIER_WORK="$work" COURIER_BANNER=0
cd "$dir/share"
exec ../bin/courier acp --model "$BENCHFLOW_PROVIDER_MODEL" --request-timeout 600
"""
STUB = Path(behaviour.__file__).with_name("_stub.sh")
MAPPING = {"BENCHFLOW_PROVIDER_BASE_URL": "COURIER_URL", "BENCHFLOW_PROVIDER_API_KEY": "COURIER_KEY"}
NAMES = ("the usual", "no key", "LLM_TIMEOUT=soon", "effort max", "quotes in the key", "programs that fail")
FEW = [row for row in ROWS if row.name in NAMES]


def manifest(launch: str, mapping: Mapping[str, str] = MAPPING) -> Manifest:
    return Manifest(contract_version="1.0", name="courier", install_cmd="true", launch_cmd=launch, env_mapping=mapping)


def edited(old: str, new: str, text: str = LAUNCH) -> Manifest:
    assert old in text
    return manifest(text.replace(old, new))


def compared(tmp_path: Path, here: Manifest, there: Manifest, rows: Sequence[Row] = FEW) -> Behaviour:
    return asyncio.run(compare_behaviour(here, there, backend, tmp_path, rows))


LOGIN = """printf '%s' "$COURIER_KEY" | "$dir/bin/courier" login --stdin >/dev/null 2>&1 || true\n"""
SAME = {
    "comments": ("umask 077", "# Nobody else reads it.\numask 077"),
    "blanks": ("mkdir -p ", "mkdir   -p\t"),
    "other-quotes": ('"courier: no key"', "'courier: no key'"),
    "words-on-stderr": ("no key", "there is no key"),
    "other-command": ('[ -z "$COURIER_KEY" ]', 'test "$COURIER_KEY" = ""'),
    "layout-of-json": ('{"url": "%s", ', '{\\n"url":"%s",'),
    "a-way-round": ('cd "$dir/share"', 'cd "$dir" && cd share'),
    "path-spelled-out": ("${BENCHFLOW_AGENT_DIR:-/opt/benchflow/agents/courier}", "/opt/benchflow/agents/courier"),
}
GOES_ON = "it goes on where the other stops with exit code"
# Of each kind of drift: the change, what differs, and what it weakens.
DRIFT = {
    "effort-lowered": ("${BENCHFLOW_REASONING_EFFORT:-medium}", "low", "value effort", "effort lowered there"),
    "effort-dropped": ('"effort": "%s", ', '"level": "%s", ', "value effort", "effort dropped there"),
    "timeout-lowered": ('"timeout": %s', '"timeout": 300, "x": %s', "value timeout", "timeout lowered there"),
    "timeout-dropped": ('"timeout": %s', '"x": %s', "value timeout", "timeout dropped there"),
    "timeout-argument-lowered": ("timeout 600", "timeout 60", "call 2, arguments", "timeout lowered there"),
    "timeout-argument-dropped": (" --request-timeout 600", "", "call 2, arguments", "timeout dropped there"),
    "check-of-key-dropped": ("exit 3", "true", "exit code", f"check dropped there: {GOES_ON} 3"),
    "check-of-number-dropped": ("exit 2", "limit=1", "exit code", f"check dropped there: {GOES_ON} 2"),
    "failure-passed-over": (
        " || true",
        "",
        "programs started",
        "check dropped here: it starts 2 programs where the other stops after 1",
    ),
    "file-open-to-others": ("077", "022", "settings.json, mode", "access widened there: other users may use the file"),
    "other-exit-code": ("exit 3", "exit 4", "exit code", None),
    "other-file": (".courier/settings.json", ".courier/setup.json", "settings.json, kind", None),
    "value-in-a-file": ('"$COURIER_URL"', '"http://elsewhere"', "value url", None),
    "argument-dropped": (" --stdin", "", "call 1, arguments", None),
    "argument-joined": ('--model "$BENCHFLOW', '"--model=$BENCHFLOW', "call 2, arguments", None),
    "variable": ("COURIER_BANNER=0", "COURIER_BANNER=1", "call 2, variable COURIER_BANNER", None),
    "variable-dropped": (" COURIER_BANNER=0", "", "call 2, variable COURIER_BANNER", None),
    "working-directory": ('cd "$dir/share"', 'cd "$dir/lib"', "call 2, working directory", None),
    "standard-input": ("printf '%s' ", "printf '%s\\n' ", "call 1, standard input", None),
    "first-request-taken": ("umask 077", "umask 077; read -r _", "call 2, standard input", None),
    "call-dropped": (LOGIN, "", "programs started", None),
    "noise-on-stdout": ("umask 077", "umask 077; echo starting", "standard output", None),
    "key-expanded-again": ("printf '%s' \"$COUR", 'eval printf %s "\\$COUR', "call 1, standard input", None),
}


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> Launches:
    """Return what the launch command and all its changed forms did, run with the same stubs."""
    changed = {name: edited(*change[:2]) for name, change in (SAME | DRIFT).items()}
    return asyncio.run(launch({HERE: manifest(LAUNCH), **changed}, backend, tmp_path_factory.mktemp("launches"), FEW))


def judged(launches: Launches, name: str) -> Behaviour:
    outcomes = {HERE: launches.outcomes[HERE], THERE: launches.outcomes[name]}
    scripts = {HERE: LAUNCH, THERE: edited(*(SAME | DRIFT)[name][:2]).launch_cmd}
    return judge(scripts, Launches(launches.rows, outcomes, launches.made))


@pytest.mark.parametrize("name", SAME)
def test_text_without_effect_is_the_same_behaviour(launches: Launches, name: str) -> None:
    found = judged(launches, name)
    assert (list(found.drifts), found.undecided) == ([], ())
    assert found.same
    assert found.rows == len(FEW)


@pytest.mark.parametrize("name", DRIFT)
def test_each_kind_of_drift_is_found_and_what_weakens_is_named(launches: Launches, name: str) -> None:
    _, _, what, loss = DRIFT[name]
    found = judged(launches, name)
    assert not found.same
    assert found.drifts
    assert any(drift.what.endswith(what) for drift in found.drifts)
    assert {drift.weakens for drift in found.drifts} - {None} == ({loss} if loss else set())


@pytest.mark.parametrize(
    ("command", "says"),
    [
        pytest.param("head -c 70000 /dev/zero", "it prints over 65536 bytes", id="output"),
        pytest.param("head -c 1100000 /dev/zero | courier", "it hands courier over 1048576 bytes", id="input"),
    ],
)
def test_what_is_too_long_to_be_compared_is_undecided(tmp_path: Path, command: str, says: str) -> None:
    there = manifest(f"{command}; exec courier acp")
    found = compared(tmp_path, there, there, FEW[:1])
    assert not found.same
    assert len(found.undecided) == 2
    assert all(says in doubt for doubt in found.undecided)


def test_a_side_that_is_weaker_here_is_named_so(tmp_path: Path) -> None:
    found = compared(tmp_path, edited(*DRIFT["timeout-lowered"][:2]), manifest(LAUNCH), FEW[:1])
    assert {drift.weakens for drift in found.drifts} - {None} == {"timeout lowered here"}


def test_a_variable_that_is_mapped_to_another_name_is_drift(tmp_path: Path) -> None:
    there = manifest(LAUNCH, {**MAPPING, "BENCHFLOW_PROVIDER_API_KEY": "COURIER_TOKEN"})
    found = compared(tmp_path, manifest(LAUNCH), there)
    assert "exit code" in {drift.what for drift in found.drifts}


AGENT = "exec ../bin/courier acp"
# Of what stubs cannot exercise: what comes before the agent, and what is said.
UNDECIDED = {
    "only-an-installation-has-it": (
        "tool=$(ls /opt/benchflow/courier-*/run 2>/dev/null || true)",
        "it depends on /opt/benchflow/courier-*/run, which only an installation has",
    ),
    "output-of-a-stub": ('version=$("$dir/bin/courier" --version)', "prints, which a stub cannot know"),
    "fails-before-its-agent": (
        "cat made-by-login",
        "with all it asks for it ends with exit code 1: cat: made-by-login",
    ),
    "killed": ("kill -9 $$", "it was killed by signal 9"),
    "program-not-found": ("PATH=/nowhere; courier", "a program was not found (exit code 127)"),
}


@pytest.mark.parametrize(("before", "says"), UNDECIDED.values(), ids=UNDECIDED)
def test_what_stubs_cannot_exercise_is_undecided(tmp_path: Path, before: str, says: str) -> None:
    same = edited(AGENT, f"{before}\n{AGENT}")
    found = compared(tmp_path, same, manifest(same.launch_cmd + "# another text\n"), FEW[:1])
    assert not found.same
    assert any(says in doubt for doubt in found.undecided), found.undecided


def test_a_launch_that_starts_no_program_is_undecided(tmp_path: Path) -> None:
    found = compared(tmp_path, manifest("true"), manifest("true # nothing"))
    assert not found.same
    assert found.undecided[0] == "here: no program was started in any environment, and so no agent"


def test_a_launch_that_hangs_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_benchflow.rollout.behaviour._RUN_SEC", 0.5)
    found = compared(tmp_path, manifest("exec courier"), manifest("sleep 60 & sleep 60; exec courier"), FEW[:1])
    assert "there, the usual: it did not end in time" in found.undecided


def test_a_launch_that_hangs_in_every_environment_does_not_take_its_time_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_benchflow.rollout.behaviour._RUN_SEC", 6.0)
    start = time.monotonic()
    found = compared(tmp_path, manifest("exec courier"), manifest("sleep 60; exec courier"), FEW[:4])
    assert len([doubt for doubt in found.undecided if "it did not end in time" in doubt]) == 4
    assert time.monotonic() - start < 40  # two runs of 6 s and six of 1 s, not eight of 6 s


def test_a_launch_that_writes_without_end_fills_no_disk(tmp_path: Path) -> None:
    endless = manifest("set -e; yes; exec courier")
    found = compared(tmp_path, endless, endless, FEW[:1])
    assert any("it prints over 65536 bytes" in doubt for doubt in found.undecided)
    assert max(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= 64 << 20


def test_programs_are_found_in_every_way_that_a_shell_calls_them(tmp_path: Path) -> None:
    launch = """\
    [ -x /opt/other/tool ] || exit 9
    command -v helper >/dev/null || exit 8
    if ! command -v absent >/dev/null; then HOW=without; fi
    export HOW
    cat >"/tmp/inner.sh" <<'SH'
    /opt/other/inner "two words" >/dev/null 2>&1
    SH
    sh /tmp/inner.sh && sh -c '/opt/other/deep' && VARIABLE=1 env OTHER=2 nice -n 5 /opt/other/prefixed
    { helper one; } >/dev/null 2>&1
    (cd /opt/other/place && ./local)
    python3 -m courier.server
    node "/opt/other/server.js" --acp
    """
    launch = "\n".join(line.strip() for line in launch.splitlines())
    other = manifest(launch.replace('"two words"', '"two  words"').replace("HOW=without", "HOW=with"))
    found = compared(tmp_path, manifest(launch), other, FEW[:1])
    assert not found.undecided
    told = {drift.what: drift for drift in found.drifts if "variable" not in drift.what}
    assert told["call 1, arguments"].here == '["two·words"]'
    assert "call 4, variable HOW" not in told
    again = tmp_path / "again"
    again.mkdir()
    assert compared(again, manifest(launch), manifest(launch + "\n"), FEW[:1]).same


@pytest.mark.parametrize("checker", [["sh", "-n"], ["dash", "-n"], ["shellcheck"]], ids=" ".join)
def test_the_stub_is_sound_posix_sh(checker: list[str]) -> None:
    if shutil.which(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed")
    done = subprocess.run([*checker, STUB], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_whole_table_finds_what_only_odd_values_show(tmp_path: Path) -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert {row.effort for row in ROWS} >= {None, "none", "minimal", "low", "medium", "high", "xhigh", "max"}
    found = compared(
        tmp_path,
        manifest(LAUNCH),
        edited('--model "$BENCHFLOW_PROVIDER_MODEL"', "--model $BENCHFLOW_PROVIDER_MODEL"),
        ROWS,
    )
    assert found.rows == len(ROWS)
    assert {drift.row for drift in found.drifts} == {"no model", "quotes in the model's name"}


def test_our_openhands_with_a_weaker_effort_is_found(tmp_path: Path) -> None:
    ours = shipped("openhands")
    assert ours is not None
    there = replace(ours, launch_cmd=ours.launch_cmd.replace('{"effort": effort}}', '{"effort": "high"}}'))
    assert there.launch_cmd != ours.launch_cmd
    found = compared(tmp_path, ours, there, [row for row in ROWS if row.name in ("the usual", "effort max")])
    assert {(drift.row, drift.weakens) for drift in found.drifts} == {("effort max", "effort lowered there")}
