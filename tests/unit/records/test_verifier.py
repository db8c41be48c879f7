"""What verifiers print, and whose failure it shows; outputs have the form of real tools and invented content."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.records.owner import TaskText
from pytest_benchflow.records.verifier import dead_bootstrap

if TYPE_CHECKING:
    from pathlib import Path

ASKED = """Write a function `balance` in /app/solution.py and a program /app/out.sh.
`ledger` must be on the PATH. The report goes to /app/out.json.
"""
SCRIPT = """#!/bin/bash
pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
jq .total /app/out.json; fmtcheck /app/solution.py; /app/out.sh; ledger balance
python3 -c 'import missing_lib'
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
AT_HAND = TaskText(ASKED, "", SCRIPT, frozenset(("test.sh", "test_outputs.py")))


def judge(directory: Path, output: str, task: TaskText | None, name: str = "test-stdout.txt") -> str | None:
    (directory / name).write_text(textwrap.dedent(output).lstrip("\n"))
    return dead_bootstrap(directory, task)


def collection_error(body: str) -> str:
    return f"""\
============================= test session starts ==============================
platform linux -- Python 3.12.3, pytest-8.4.1, pluggy-1.6.0
rootdir: /tests
plugins: json-ctrf-0.3.5
collected 0 items / 1 error

==================================== ERRORS ====================================
____________________ ERROR collecting test_outputs.py _____________________
{textwrap.dedent(body).strip()}
=========================== short test summary info ============================
ERROR ../tests/test_outputs.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
=============================== 1 error in 0.12s ===============================
"""


def import_error(*frames: str, error: str) -> str:
    return collection_error(
        "ImportError while importing test module '/tests/test_outputs.py'.\n"
        "Hint: make sure your test modules/packages have valid Python names.\n"
        "Traceback:\n"
        "/usr/lib/python3.12/importlib/__init__.py:90: in import_module\n"
        "    return _bootstrap._gcd_import(name[level:], package, level)\n" + "\n".join(frames) + f"\nE   {error}"
    )


IN_TEST = "/tests/test_outputs.py:3: in <module>\n    import it"
IN_SOLUTION = "/app/solution.py:1: in <module>\n    import it"
IN_PANDAS = "/usr/local/lib/python3.12/site-packages/pandas/io/excel.py:8: in <module>\n    import it"
NO_NUMPY = "ModuleNotFoundError: No module named 'numpy'"


# The verifier is at fault, whether or not its task is at hand.
DEAD = {
    "runner-missing": "test.sh: line 9: pytest: command not found",
    "dash-wording": "sh: 3: uvx: not found",
    "busybox-wording": "/tests/test.sh: line 4: python3: not found",
    "path-wording": "/tests/test.sh: line 3: /root/.local/bin/uvx: No such file or directory",
    "env-wording": "env: 'uvx': No such file or directory",
    "env-wording-utf8": "/usr/bin/env: \u2018pytest\u2019: No such file or directory",
    "timeout-wording": "timeout: failed to run command 'pytest': No such file or directory",
    "no-line-number": "bash: pytest: command not found",
    "not-to-be-run": "/tests/test.sh: line 3: /usr/local/bin/uvx: Permission denied",
    "script-not-to-be-run": "bash: /tests/test.sh: Permission denied",
    "no-interpreter-for-uv": "error: No interpreter found for Python 3.13 in managed installations or search path",
    "maven-offline": "[ERROR] Could not transfer artifact org.junit:junit:pom:5.10.0 from/to central (https://repo.x)",
    "in-a-script-beside-it": "/tests/setup.sh: line 18: uv: command not found",
    "jq": "/tests/test.sh: line 4: jq: command not found",
    "node": "/tests/test.sh: line 12: node: command not found",
    "npm": "/verifier/test.sh: line 12: npm: command not found",
    "go": "/tests/test.sh: 7: go: not found",
    "cargo": "/tests/test.sh: line 7: cargo: command not found",
    "interpreter": "/tests/run.sh: /usr/bin/zsh: bad interpreter: No such file or directory",
    "interpreter-of-another-system": "bash: /tests/test.sh: /bin/bash\r: bad interpreter: No such file or directory",
    "interpreter-newer-wording": "bash: line 1: /tests/test.sh: cannot execute: required file not found",
    "no-pytest-module": "/usr/bin/python3: No module named pytest",
    "behind-a-proxy": "curl: (56) CONNECT tunnel failed, response 502",
    "no-name-service": "curl: (6) Could not resolve host: astral.sh",
    "no-route": "curl: (7) Failed to connect to astral.sh port 443 after 3 ms: Couldn't connect to server",
    "no-package": "ERROR: No matching distribution found for pytest==8.4.1",
    "pip-offline": "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError("
    "'<pip._vendor.urllib3.connection.HTTPSConnection object>: Failed to establish a new connection: [Errno -3]')'",
    "uv-offline": "error: Failed to fetch: `https://pypi.org/simple/pytest/`\n  Caused by: dns error",
    "uv-download": "  \u00d7 Failed to download `numpy==2.3.0`",
    "uv-request": "  Caused by: error sending request for url (https://pypi.org/simple/pytest/)",
    "apt": "E: Unable to locate package jq",
    "npm-offline": "npm ERR! code EAI_AGAIN\nnpm ERR! syscall getaddrinfo",
    "go-offline": 'go: Get "https://proxy.golang.org/x": dial tcp: lookup proxy.golang.org: no such host',
    "no-test-file": "ERROR: file or directory not found: /tests/test_outputs.py\n\nno tests ran in 0.00s",
    "no-grader": "python3: can't open file '/tests/grader.py': [Errno 2] No such file or directory",
    "no-helper": "/tests/test.sh: line 3: /tests/helpers.sh: No such file or directory",
    "no-expected-file": "diff: /tests/expected.txt: No such file or directory",
    "no-data-of-the-grader": "Traceback (most recent call last):\n"
    '  File "/tests/grader.py", line 3, in <module>\n    gold = open("/tests/gold.json")\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/tests/gold.json'",
    "no-node-file": "node:internal/modules/cjs/loader:1228\n\nError: Cannot find module '/tests/check.js'\n",
    "no-tests-ran": "no tests ran in 0.01s",
    "nothing-collected": "rootdir: /tests\ncollected 0 items\n\n= no tests ran in 0.01s =",
    "all-deselected": "rootdir: /tests\ncollected 4 items / 4 deselected / 0 selected\n\n= 4 deselected in 0.01s =",
    "module-skipped": "rootdir: /tests\ncollected 0 items / 1 skipped\n\n===== 1 skipped in 0.02s =====",
    "unittest-found-none": "----------\nRan 0 tests in 0.000s\n\nOK",
    "jest-found-none": "No tests found, exiting with code 1",
    "cargo-found-none": "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; finished in 0.00s",
    "plugin-missing": "ERROR: usage: pytest [options]\npytest: error: unrecognized arguments: --ctrf /c.json",
    "runner-broken": "INTERNALERROR> AttributeError: 'NoneType' object has no attribute 'x'",
    "library-of-a-test": import_error(IN_TEST, error=NO_NUMPY),
    "library-of-a-library": import_error(IN_TEST, IN_PANDAS, error="ModuleNotFoundError: No module named 'openpyxl'"),
    "shared-object": import_error(
        IN_TEST, error="ImportError: libGL.so.1: cannot open shared object file: No such file"
    ),
    "library-of-conftest": "ImportError while loading conftest '/tests/conftest.py'.\n"
    f"/tests/conftest.py:1: in <module>\n    import numpy\nE   {NO_NUMPY}",
    "library-of-a-grader": 'Traceback (most recent call last):\n  File "/tests/grader.py", line 3, in <module>\n'
    f"    import numpy as np\n{NO_NUMPY}\nverifier failed, scoring 0",
    "library-of-unittest": "E\n======\nERROR: test_outputs (unittest.loader._FailedTest.test_outputs)\n------\n"
    "ImportError: Failed to import test module: test_outputs\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/unittest/loader.py", line 394, in _find_test_path\n    module = x\n'
    f'  File "/tests/test_outputs.py", line 1, in <module>\n    import numpy\n{NO_NUMPY}\n\n------\nRan 1 test in 0.0s',
    "runner-ruined": 'Traceback (most recent call last):\n  File "/usr/local/bin/pytest", line 8, in <module>\n'
    '  File "/usr/local/lib/python3.12/site-packages/invented/plugin.py", line 9, in <module>\n    import it\n'
    "ModuleNotFoundError: No module named 'pytest_asyncio'",
    "test-that-does-not-parse": collection_error(
        "/usr/lib/python3.12/site-packages/_pytest/python.py:498: in importtestmodule\n    mod = import_path(\n"
        'E     File "/tests/test_outputs.py", line 7\nE       match answer:\nE             ^\n'
        "E   SyntaxError: invalid syntax"
    ),
    "library-of-a-node-test": "Error: Cannot find module 'chai'\nRequire stack:\n- /tests/check.js\n    at x",
    "library-of-an-r-test": "Error in library(testthat) : there is no package called \u2018testthat\u2019",
    "every-failed-test-lacks-it": "collected 2 items\n\n../tests/test_outputs.py .F  [100%]\n\n"
    f">       import numpy as np\nE       {NO_NUMPY}\n\n/tests/test_outputs.py:9: ModuleNotFoundError\n"
    "= 1 failed, 1 passed in 0.11s =",
}

# The agent is at fault, whether or not its task is at hand.
FAILED = {
    "nothing-said": "",
    "own-words": "FAIL: /app/out.json not found",
    "diff": "2c2\n< 12 FR\n---\n> 13 FR",
    "diff-of-a-missing-file": "diff: /app/out.json: No such file or directory",
    "no-script-of-the-agents": "/tests/test.sh: line 4: /app/out.sh: No such file or directory",
    "no-program-of-the-agents": "/tests/test.sh: line 4: ledger: command not found",
    "no-program-of-the-agents-in-a-string": "bash: ledger: command not found",
    "the-agents-program-is-not-to-be-run": "/tests/test.sh: line 4: /app/out.sh: Permission denied",
    "the-agents-script-lacks-a-tool": "/app/out.sh: line 2: jq: command not found",
    "a-string-run-by-a-test": "sh: 1: DNS: not found",
    "quoted": "the answer was: python3: command not found",
    "warnings-of-apt": "W: Failed to fetch http://deb.debian.org/debian/InRelease  Temporary failure resolving",
    "server-down": "curl: (7) Failed to connect to localhost port 8080 after 0 ms: Couldn't connect to server",
    "server-down-for-requests": "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): "
    "Max retries exceeded (Caused by NewConnectionError('Failed to establish a new connection: [Errno 111]'))",
    "server-with-a-bad-certificate": "curl: (60) SSL certificate problem: self-signed certificate",
    "server-too-slow": "curl: (28) Operation timed out after 5001 milliseconds with 0 bytes received",
    "fetch-from-the-agents-server": "Failed to fetch data from http://127.0.0.1:8000/items",
    "failing-npm-test": "npm ERR! code ELIFECYCLE\nnpm ERR! Test failed.  See above for more details.",
    "no-package-json": "npm ERR! code ENOENT\nnpm ERR! Could not read package.json",
    "go-does-not-compile": "# example.com/app\n./main.go:3:1: syntax error\nFAIL\texample.com/app [build failed]\nFAIL",
    "some-tests-failed": "pytest: command not found\n2 failed, 1 passed in 0.1s",
    "unittest-ran": "Ran 3 tests in 0.01s\n\nFAILED (failures=3)\nNo module named pytest",
    "tap": "1..2\nok 1 - starts\nnot ok 2 - counts\ntest.sh: line 4: jq: command not found",
    "mocha": "  1 passing (4ms)\n  2 failing\n\nsh: 1: jq: not found",
    "jest": "Tests:       2 failed, 1 passed, 3 total",
    "go-ran": "--- FAIL: TestBalance (0.00s)\n    x_test.go:5: no\nFAIL\texample.com/app\t0.004s\nsh: 1: jq: not found",
    "cargo-ran": "test result: FAILED. 1 passed; 2 failed; 0 ignored; finished in 0.00s\ntest.sh: 1: jq: not found",
    "assertion-quotes-a-shell": "collected 1 item\n\n../tests/test_outputs.py F\n"
    "E       AssertionError: assert 'test.sh: line 1: pytest: command not found' == ''\n= 1 failed in 0.02s =",
    "killed-in-a-test": "rootdir: /tests\ncollected 5 items\n\n../tests/test_outputs.py FF",
    "fixture-failed": "collected 1 item\n\n../tests/test_outputs.py E\n\n___ ERROR at setup of test_status ___\n"
    "E   Failed: the server is not responding\n= 1 error in 26.79s =",
    "assertion-at-import": collection_error(
        "/tests/test_outputs.py:81: in <module>\n    check()\nE   AssertionError: expected '42' to be in '127'"
    ),
    "answer-missing-at-import": collection_error(
        "/tests/test_outputs.py:4: in <module>\n    DATA = open(OUT).read()\n"
        "E   FileNotFoundError: [Errno 2] No such file or directory: '/app/out.json'"
    ),
    "module-of-the-agents": import_error(IN_TEST, error="ModuleNotFoundError: No module named 'solution'"),
    "name-in-a-module-of-the-agents": import_error(
        IN_TEST, error="ImportError: cannot import name 'balance' from 'solution' (/app/solution.py)"
    ),
    "library-of-the-agents-module": import_error(IN_TEST, IN_SOLUTION, error=NO_NUMPY),
    "agents-module-does-not-parse": collection_error(
        "/tests/test_outputs.py:3: in <module>\n    from solution import balance\n"
        'E     File "/app/solution.py", line 1\nE       def balance(:\nE                   ^\n'
        "E   SyntaxError: invalid syntax"
    ),
    "agents-conftest": "ImportError while loading conftest '/app/conftest.py'.\n"
    f"/app/conftest.py:1: in <module>\n    import numpy\nE   {NO_NUMPY}\nno tests ran in 0.01s",
    "agents-tests-are-not-there": "rootdir: /app\ncollected 0 items\n\n= no tests ran in 0.00s =\n"
    "ERROR: file or directory not found: /app/test_balance.py",
    "grader-runs-a-program-without-library": "Traceback (most recent call last):\n"
    '  File "/app/solution.py", line 1, in <module>\n'
    f"    import numpy\n{NO_NUMPY}\nscore: 0",
    "one-test-lacks-it-another-failed": "collected 2 items\n\n../tests/test_outputs.py FF  [100%]\n\n"
    f">       import numpy as np\nE       {NO_NUMPY}\n\n/tests/test_outputs.py:9: ModuleNotFoundError\n"
    ">       assert 0\nE       assert 0\n\n/tests/test_outputs.py:12: AssertionError\n= 2 failed in 0.11s =",
    "assertion-quotes-an-import-error": "collected 1 item\n\n../tests/test_outputs.py F\n\n"
    f"E       AssertionError: exit code 1:\nE         /tests/test_imports.py:3: in <module>\nE         {NO_NUMPY}\n\n"
    "/tests/test_outputs.py:12: AssertionError\n= 1 failed in 0.11s =",
    "node-file-of-the-agents": "Error: Cannot find module '../app/server'\nRequire stack:\n- /tests/check.js",
}


@pytest.mark.parametrize("task", [pytest.param(AT_HAND, id="at-hand"), pytest.param(None, id="on-disk")])
@pytest.mark.parametrize("output", DEAD.values(), ids=DEAD)
def test_a_verifier_that_lacks_something_of_its_own_is_dead(tmp_path: Path, output: str, task: TaskText | None) -> None:
    assert judge(tmp_path, output, task, "test-stdout.txt")
    (tmp_path / "test-stdout.txt").unlink()
    assert judge(tmp_path, output, task, "test-stderr.txt")


@pytest.mark.parametrize("task", [pytest.param(AT_HAND, id="at-hand"), pytest.param(None, id="on-disk")])
@pytest.mark.parametrize("output", FAILED.values(), ids=FAILED)
def test_a_failed_test_is_not_a_dead_verifier(tmp_path: Path, output: str, task: TaskText | None) -> None:
    assert judge(tmp_path, output, task) is None


@pytest.mark.parametrize(
    "output",
    [
        pytest.param("/tests/test.sh: line 3: fmtcheck: command not found", id="tool-that-only-the-script-names"),
        pytest.param("sh: 1: fmtcheck: not found", id="tool-of-a-command-string"),
        pytest.param(
            import_error(IN_TEST, error="ModuleNotFoundError: No module named 'rareorbit'"), id="rare-library"
        ),
        pytest.param(
            'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
            "ModuleNotFoundError: No module named 'missing_lib'",
            id="library-of-a-line-in-the-script",
        ),
    ],
)
def test_a_name_that_only_the_verifier_uses_is_its_own(tmp_path: Path, output: str) -> None:
    assert judge(tmp_path, output, AT_HAND)
    assert judge(tmp_path, output, None) is None
    for made in ("pip install rareorbit missing_lib; cp fmtcheck /usr/bin", "fmtcheck/x missing_lib/y rareorbit/z"):
        assert judge(tmp_path, output, TaskText(ASKED, made, SCRIPT)) is None


@pytest.mark.parametrize(
    ("asked", "output"),
    [
        pytest.param("Install jq.", DEAD["jq"], id="tool"),
        pytest.param("Write /app/bin/jq.", DEAD["jq"], id="tool-to-be-written"),
        pytest.param("pip install numpy==2.0", DEAD["library-of-a-test"], id="library"),
        pytest.param("Write numpy.py.", DEAD["library-of-a-test"], id="module-to-be-written"),
        pytest.param(
            "Set up scikit-learn.", import_error(IN_TEST, error="ImportError: No module named 'sklearn'"), id="package"
        ),
    ],
)
def test_a_known_name_is_the_agents_where_the_task_asks_for_it(tmp_path: Path, asked: str, output: str) -> None:
    assert judge(tmp_path, output, TaskText(asked, script=SCRIPT)) is None
    assert judge(tmp_path, output, TaskText("Use jq and numpy.", "pip install numpy jq", SCRIPT))


@pytest.mark.parametrize(
    ("asked", "dead"),
    [
        pytest.param("Write tests into /app/test_balance.py.", False, id="asked-for-tests"),
        pytest.param("Write /app/solution.py.", True, id="asked-for-none"),
    ],
)
def test_tests_of_the_working_directory_are_the_agents_where_it_was_asked_for_them(
    tmp_path: Path, asked: str, *, dead: bool
) -> None:
    output = "rootdir: /app\ncollected 0 items\n\n============ no tests ran in 0.00s ============"
    assert bool(judge(tmp_path, output, TaskText(asked, script=SCRIPT))) is dead


def test_a_report_of_executed_tests_is_proof_of_life(tmp_path: Path) -> None:
    (tmp_path / "ctrf.json").write_text('{"results": {"summary": {"tests": 2}}}')
    assert judge(tmp_path, "test.sh: line 1: pytest: command not found", AT_HAND) is None


def test_a_report_of_no_test_is_proof_of_none(tmp_path: Path) -> None:
    (tmp_path / "ctrf.json").write_text('{"results": {"summary": {"tests": 0}}}')
    assert dead_bootstrap(tmp_path, AT_HAND) == "ctrf.json counts 0 tests"


@pytest.mark.parametrize("report", ["", "[]", '{"results": 1}', '{"results": {"summary": {"tests": "0"}}}'])
def test_a_report_that_is_none_says_nothing(tmp_path: Path, report: str) -> None:
    (tmp_path / "ctrf.json").write_text(report)
    assert dead_bootstrap(tmp_path, AT_HAND) is None


def test_a_log_beside_the_reward_is_read_and_an_answer_is_not(tmp_path: Path) -> None:
    assert judge(tmp_path, "/usr/bin/python3: No module named pytest", AT_HAND, "pytest_output.txt")
    (tmp_path / "pytest_output.txt").unlink()
    assert judge(tmp_path, "/usr/bin/python3: No module named pytest", AT_HAND, "answer.txt") is None


def test_links_and_missing_files_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(DEAD["runner-missing"])
    (tmp_path / "test-stdout.txt").symlink_to(tmp_path / "elsewhere")
    assert dead_bootstrap(tmp_path) is None
    assert dead_bootstrap(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "filling", ["\n", " ", "a", "=", "E ", "x: ", "a/b.py:1: in ", "1 ", "\u2018", f"{NO_NUMPY}\n"]
)
def test_a_huge_log_is_judged_by_its_ends_in_time(tmp_path: Path, filling: str) -> None:
    middle = filling * (2_000_000 // len(filling))
    begun = time.process_time()
    assert judge(tmp_path, f"test.sh: line 9: pytest: command not found\n{middle}\n", None)
    assert judge(tmp_path, f"test.sh: line 9: pytest: command not found\n{middle}\n3 failed in 0.1s\n", None) is None
    assert time.process_time() - begun < 10
