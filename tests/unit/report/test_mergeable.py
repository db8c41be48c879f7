"""The gate blocks on whatever is not known to be fine: failures, absences, skips, and files that cannot be trusted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.cli import main
from pytest_benchflow.report import mergeable
from pytest_benchflow.report.mergeable import gate_lines, judge, read_junit

if TYPE_CHECKING:
    from pathlib import Path

PASSED = '<testcase classname="suite.test_a" name="test_one" time="0.1"/>'
FAILED = (
    '<testcase classname="suite.test_a" name="test_two"><failure message="it broke&#10;here">long</failure></testcase>'
)
SKIPPED = '<testcase classname="suite.test_a" name="test_three"><skipped message="no"/></testcase>'
ERROR = '<testcase classname="suite.test_a" name="test_four"><error message="no fixture"/></testcase>'
BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
EXTERNAL = '<!DOCTYPE x SYSTEM "file:///etc/passwd">'


def junit(*cases: str, counts: str = "", before: str = "") -> str:
    suite = f'<testsuite name="pytest" {counts}>{"".join(cases)}</testsuite>'
    return f'<?xml version="1.0"?>{before}<testsuites>{suite}</testsuites>'


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str]]:
    code = main(["gate", *map(str, arguments)])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out.splitlines()


def test_all_passed_is_mergeable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "unit.xml", junit(PASSED, SKIPPED))
    assert run(capsys, file) == (0, ["mergeable: 1 passed, 1 skipped"])


def test_each_blocker_is_told_local_and_external_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = write(tmp_path / "unit.xml", junit(PASSED, FAILED))
    parity = write(tmp_path / "parity.xml", junit(ERROR))
    asked = (
        "--require",
        "unit",
        "--require",
        "parity",
        "--require",
        "lint",
        "--require",
        "links",
        "--external",
        "parity",
        "--external",
        "links",
    )
    code, lines = run(capsys, unit, parity, *asked)
    assert code == 1
    assert lines == [
        "blocked: 4 blockers; tests: 1 passed, 1 failed, 1 error",
        "local",
        "  unit: suite.test_a::test_two: failed: it broke here",
        "  required check lint: absent: no file and no test of that name",
        "external",
        "  parity: suite.test_a::test_four: error: no fixture",
        "  required check links: absent: no file and no test of that name",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("unit", None, id="file"),
        pytest.param("unit.xml", None, id="file-with-its-ending"),
        pytest.param("test_one", None, id="test"),
        pytest.param("suite.test_a::test_one", None, id="test-in-full"),
        pytest.param("*_one", None, id="wild-card"),
        pytest.param("test_three", "skipped: unit: suite.test_a::test_three", id="skipped-test"),
        pytest.param("suite.test_a::*", "skipped: unit: suite.test_a::test_three", id="one-of-them-skipped"),
        pytest.param("idle", "skipped: every test of idle", id="all-of-a-file-skipped"),
        pytest.param("test_on", "absent: no file and no test of that name", id="part-of-a-name"),
        pytest.param("TEST_ONE", "absent: no file and no test of that name", id="other-case"),
    ],
)
def test_a_required_check_has_run_and_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str | None
) -> None:
    files = {"unit": junit(PASSED, SKIPPED), "idle": junit(SKIPPED), "empty": junit()}
    paths = [write(tmp_path / f"{stem}.xml", text) for stem, text in files.items() if stem in (name, "unit")]
    code, lines = run(capsys, *paths, "--require", name)
    assert code == (1 if reason else 0)
    assert [line for line in lines if "required" in line] == ([f"  required check {name}: {reason}"] if reason else [])


def test_brackets_of_a_parametrized_test_are_no_wild_card(tmp_path: Path) -> None:
    file = read_junit(write(tmp_path / "p.xml", junit('<testcase classname="parity" name="same[a b]"/>')))
    assert not judge([file], ["same[a b]", "parity::same[*]"]).blockers
    assert judge([file], ["same[ab]"]).blockers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(junit(PASSED)[:-20], "not whole and well-formed XML", id="truncated"),
        pytest.param("", "not whole and well-formed XML", id="no-text"),
        pytest.param("{}", "not whole and well-formed XML", id="json"),
        pytest.param("<html/>", "no junit file: it begins with <html>", id="other-xml"),
        pytest.param(junit(PASSED, before=BOMB), "document type declaration", id="entity-bomb"),
        pytest.param(junit(PASSED, before=EXTERNAL), "document type declaration", id="external-entity"),
        pytest.param(junit(PASSED).replace('"1.0"', '"1.0" encoding="nothing"').encode(), "XML", id="unknown-encoding"),
        pytest.param(junit(PASSED).encode() + b"\xff", "XML", id="bytes-at-the-end"),
        pytest.param("<testsuite>" + "<a>" * 100 + "</a>" * 100 + "</testsuite>", "deep", id="deep"),
        pytest.param(junit(), "it holds no test", id="empty"),
        pytest.param(junit(counts='tests="3"'), "it holds no test, though it says 3", id="tests-gone"),
        pytest.param(
            junit(PASSED, counts='failures="1"'), "says that 1 tests failed, and holds none", id="failure-gone"
        ),
        pytest.param(junit(PASSED, counts='errors="many"'), "its errors are 'many'", id="no-number"),
        pytest.param(
            junit(PASSED).replace("<testsuites>", '<testsuites failures="2">'),
            "says that 2 tests failed, and holds none",
            id="failures-gone-from-all",
        ),
        pytest.param(
            junit('<error message="no database"/>', PASSED),
            "an error that is no test's: no database",
            id="suite-broken",
        ),
        pytest.param(junit("<failure/>", PASSED), "a failure that is no test's", id="failure-of-nobody"),
    ],
)
def test_a_file_that_cannot_be_trusted_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | bytes, says: str
) -> None:
    code, lines = run(capsys, write(tmp_path / "bad.xml", text), write(tmp_path / "good.xml", junit(PASSED)))
    assert code == 1
    assert lines[:2] == ["blocked: 1 blocker; tests: 1 passed", "local"]
    assert lines[2].startswith("  bad: ")
    assert says in lines[2]


def test_a_file_that_is_none_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    code, lines = run(capsys, tmp_path / "pipe.xml", tmp_path, tmp_path / "absent.xml")
    assert code == 1
    assert [line.partition(": ")[2] for line in lines[2:]] == [
        "it is no regular file; name a junit file",
        "it is no regular file; name a junit file",
        "it cannot be read: No such file or directory",
    ]


def test_a_huge_file_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "huge.xml").open("wb") as file:
        file.truncate(mergeable._MAX_BYTES + 1)
    code, lines = run(capsys, tmp_path / "huge.xml")
    assert code == 1
    assert "are read at most" in lines[2]


def test_a_terminal_is_not_told_what_to_do(tmp_path: Path) -> None:
    text = junit('<testcase classname="a" name="b&#x9b;31m"><failure message="&#x202e;evil"/></testcase>')
    said = "\n".join(gate_lines(judge([read_junit(write(tmp_path / "x.xml", text))])))
    assert "\x9b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize("arguments", [[], ["x.xml", "--require", ""]], ids=["no-file", "empty-name"])
def test_wrong_use_is_said(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gate", *arguments])
    assert ended.value.code == 2
    assert "usage: " in capsys.readouterr().err


def test_what_pytest_writes_is_read(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def broken():
            yield
            raise RuntimeError("at the end")

        def test_passes(): pass
        def test_fails(): assert 0
        def test_error_at_the_end(broken): pass
        @pytest.mark.xfail(strict=True)
        def test_passes_unexpectedly(): pass
        @pytest.mark.xfail
        def test_fails_as_expected(): assert 0
        """
    )
    pytester.runpytest_inprocess("--junit-xml=junit.xml", "-p", "no:cacheprovider")
    found = read_junit(pytester.path / "junit.xml")
    assert found.fault is None
    outcomes = {case.name: case.outcome for case in found.cases}
    assert outcomes == {
        "test_passes": "passed",
        "test_fails": "failure",
        "test_error_at_the_end": "error",
        "test_passes_unexpectedly": "failure",
        "test_fails_as_expected": "skipped",
    }
