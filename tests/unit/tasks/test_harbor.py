from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.tasks.load import load_task
from pytest_benchflow.tasks.task import (
    AgentPhase,
    Artifact,
    Collect,
    Environment,
    Healthcheck,
    McpServer,
    NetworkPolicy,
    VerifierPhase,
)

if TYPE_CHECKING:
    from tests.unit.tasks.places import Write

EVERYTHING = """
schema_version = "1.4"
source = { repo = "teahouse/tasks" }
artifacts = ["/app/pot.txt", { source = "/var/log", destination = "logs", exclude = ["*.gz"], service = "main" }]

[task]
name = "teahouse/tea-timer"
version = "2"
description = "Brew tea."
keywords = ["tea", "time"]
authors = [{ name = "Ada", email = "ada@teahouse.invalid" }]

[metadata]
difficulty = "easy"
anything = [1, 2]

[agent]
timeout_sec = 90
user = "brewer"
network_mode = "allowlist"
allowed_hosts = ["Leaf.Invalid.", "*.pot.invalid"]

[verifier]
timeout_sec = 30.5
env = { KEY = "${TEA_KEY}" }
user = 0
network_mode = "public"
environment_mode = "separate"
collect = [{ command = "cat /app/pot.txt", service = "main", timeout_sec = 5, user = "brewer" }]

[verifier.environment]
docker_image = "scale:1"

[environment]
network_mode = "no-network"
build_timeout_sec = 120
docker_image = "kettle:2"
os = "linux"
cpus = 1.5
memory_mb = 512
storage_mb = 1024.0
gpus = 1
gpu_types = ["T4"]
tpu = { type = "v6e" }
env = { LEAF = "oolong" }
skills_dir = "/skills"
workdir = "/kitchen"

[[environment.mcp_servers]]
name = "clock"
transport = "streamable-http"
url = "http://clock.invalid/mcp"
headers = { X-Zone = "UTC" }

[[environment.mcp_servers]]
name = "scale"
transport = "stdio"
command = "scale"
args = ["--grams"]

[environment.healthcheck]
command = "test -e /kitchen"
interval_sec = 1
timeout_sec = 2
start_period_sec = 0
start_interval_sec = 3
retries = 4

[solution]
env = { HOT = "yes" }
"""


def test_every_key_is_read(write: Write) -> None:
    task = load_task(write({"task.toml": EVERYTHING, "solution/solve.sh": "true\n"}))
    assert task.warnings == ()
    assert (task.name, task.slug, task.form, task.schema_version) == (
        "teahouse/tea-timer",
        "tea-timer",
        "harbor",
        "1.4",
    )
    assert (task.description, task.keywords) == ("Brew tea.", ("tea", "time"))
    assert task.metadata == {"difficulty": "easy", "anything": [1, 2]}
    assert task.source == {"repo": "teahouse/tasks"}
    assert task.artifacts == (Artifact("/app/pot.txt"), Artifact("/var/log", "logs", ("*.gz",), "main"))
    assert task.solution_env == {"HOT": "yes"}
    assert task.environment == Environment(
        network=NetworkPolicy("no-network"),
        docker_image="kettle:2",
        cpus=1.5,
        memory_mb=512,
        storage_mb=1024,
        gpus=1,
        gpu_types=("T4",),
        tpu={"type": "v6e"},
        build_timeout_sec=120,
        mcp_servers=(
            McpServer("clock", "streamable-http", "http://clock.invalid/mcp", headers={"X-Zone": "UTC"}),
            McpServer("scale", "stdio", command="scale", args=("--grams",)),
        ),
        env={"LEAF": "oolong"},
        skills_dir="/skills",
        healthcheck=Healthcheck("test -e /kitchen", 1, 2, 0, 3, 4),
        workdir="/kitchen",
    )
    (step,) = task.steps
    assert step.agent == AgentPhase(90, "brewer", NetworkPolicy("allowlist", ("leaf.invalid", "*.pot.invalid")))
    assert step.verifier == VerifierPhase(
        timeout_sec=30.5,
        env={"KEY": "${TEA_KEY}"},
        user=0,
        network=NetworkPolicy("public"),
        environment_mode="separate",
        environment=Environment(docker_image="scale:1"),
        collect=(Collect("cat /app/pot.txt", "main", 5, "brewer"),),
    )
    assert (step.name, step.instruction) == (None, "Brew.\n")
    assert step.solution == task.path / "solution"
    assert step.tests == task.path / "tests"
    assert task.dockerfile == task.path / "environment/Dockerfile"
    assert (task.tests_target, task.solution_target) == ("/tests", "/solution")


def test_an_empty_file_is_a_task_of_defaults(write: Write) -> None:
    task = load_task(write())
    assert (task.name, task.schema_version) == ("tea-timer", "1.0")
    assert task.environment == Environment()
    assert replace(task.steps[0], tests=None) == replace(task.steps[0], tests=None, verifier=VerifierPhase())
    assert task.steps[0].agent == AgentPhase()
    assert task.steps[0].solution is None


@pytest.mark.parametrize("key", ["version", "schema_version"], ids=["old-name", "name"])
def test_the_schema_has_two_names(write: Write, key: str) -> None:
    assert load_task(write({"task.toml": f'{key} = "1.2"\n'})).schema_version == "1.2"


def test_an_unknown_schema_is_read_and_said(write: Write) -> None:
    task = load_task(write({"task.toml": 'schema_version = "7.0"\n'}))
    assert task.warnings == ("tea-timer/task.toml: schema_version 7.0 is not known; it is read as 1.4",)


def test_unknown_keys_warn_once_with_file_and_key(write: Write) -> None:
    text = "oops = 1\n[verifier]\ntimeout = 3\ncommand = 'make'\n[environment]\nimage = 'x'\n[task]\nicon = 'b'\n"
    assert load_task(write({"task.toml": text})).warnings == (
        "tea-timer/task.toml: unknown key oops is ignored",
        "tea-timer/task.toml: unknown key verifier.timeout is ignored; probably timeout_sec is meant",
        "tea-timer/task.toml: unknown key verifier.command is ignored",
        "tea-timer/task.toml: unknown key environment.image is ignored",
        "tea-timer/task.toml: unknown key task.icon is ignored",
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("allow_internet = true", Environment(NetworkPolicy("public")), id="internet-allowed"),
        pytest.param("allow_internet = false", Environment(NetworkPolicy("no-network")), id="internet-forbidden"),
        pytest.param(
            'allow_internet = true\nnetwork_mode = "no-network"',
            Environment(NetworkPolicy("no-network")),
            id="new-network-key-wins",
        ),
        pytest.param('memory = "2G"', Environment(memory_mb=2048), id="memory"),
        pytest.param('memory = "2G"\nmemory_mb = 64', Environment(memory_mb=64), id="new-memory-key-wins"),
        pytest.param('storage = "1.5GiB"', Environment(storage_mb=1536), id="storage-binary"),
        pytest.param('storage = "512m"', Environment(storage_mb=512), id="lower-case"),
        pytest.param('memory = "100K"', Environment(memory_mb=1), id="less-than-one"),
    ],
)
def test_deprecated_keys_still_count(write: Write, lines: str, expected: Environment) -> None:
    task = load_task(write({"task.toml": f"[environment]\n{lines}\n"}))
    assert task.environment == expected
    assert task.warnings == ()


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        pytest.param("agent = 3", "agent is 3 (a number)", "a table with the keys timeout_sec", id="table"),
        pytest.param("steps = {}", "steps is {} (a table)", "a list of tables with name", id="list-of-tables"),
        pytest.param("metadata = 1", "metadata is 1", "a table", id="free-table"),
        pytest.param("version = true", "version is True (true or false)", 'a version such as "1.4"', id="version"),
        pytest.param("artifacts = [3]", "artifacts[0] is 3", "a table with the keys source", id="artifact"),
        pytest.param("artifacts = [{}]", "artifacts[0].source is missing", "a value for it", id="artifact-source"),
        pytest.param(
            "artifacts = ['/a', '../x']", "artifacts[1] is '../x'", "a path in the sandbox without ..", id="artifact-up"
        ),
        pytest.param(
            "artifacts = [{source = '/app/../../etc'}]",
            "artifacts[0].source is '/app/../../etc'",
            "a path in the sandbox without ..",
            id="artifact-absolute-up",
        ),
        pytest.param(
            "[[steps]]\nname = 'one'\nartifacts = ['../x']",
            "steps[0].artifacts[0] is '../x'",
            "a path in the sandbox without ..",
            id="artifact-of-a-step",
        ),
        pytest.param("artifacts = ['~/x']", "artifacts[0] is '~/x'", "a path in the sandbox without ..", id="artifact-home"),
        pytest.param(
            "artifacts = [{source = '/a', destination = '../up'}]",
            "artifacts[0].destination is '../up'",
            "a relative path without ..",
            id="artifact-destination",
        ),
        pytest.param(
            "multi_step_reward_strategy = 'max'",
            "multi_step_reward_strategy is 'max' (text)",
            "mean, final",
            id="strategy",
        ),
        pytest.param(
            "[verifier]\ntimeout_sec = 'soon'",
            "verifier.timeout_sec is 'soon' (text)",
            "a number of seconds above 0",
            id="seconds",
        ),
        pytest.param("[agent]\ntimeout_sec = 0", "agent.timeout_sec is 0", "a number of seconds above 0", id="zero"),
        pytest.param("[agent]\ntimeout_sec = inf", "agent.timeout_sec is inf", "a number of seconds", id="infinite"),
        pytest.param(f"[agent]\ntimeout_sec = {'9' * 400}", "agent.timeout_sec is 9", "a number", id="beyond-floats"),
        pytest.param(f"[environment]\nmemory = '{'9' * 400}G'", "environment.memory is", "a size", id="beyond-sizes"),
        pytest.param("[agent]\ntimeout_sec = true", "agent.timeout_sec is True", "a number of seconds", id="bool"),
        pytest.param("[agent]\nuser = []", "agent.user is []", "a user's name or number", id="user"),
        pytest.param("[agent]\nuser = -1", "agent.user is -1", "a user's name or number", id="negative-user"),
        pytest.param(
            "[agent]\nnetwork_mode = 'open'", "agent.network_mode is 'open'", "public, no-network, allowlist", id="mode"
        ),
        pytest.param(
            "[agent]\nnetwork_mode = 'allowlist'", "agent.allowed_hosts is missing", "at least one host", id="no-hosts"
        ),
        pytest.param(
            "[agent]\nallowed_hosts = ['a.invalid']",
            "agent.allowed_hosts is given while network_mode is None",
            'network_mode = "allowlist"',
            id="hosts-without-mode",
        ),
        pytest.param(
            "[agent]\nallowed_hosts = ['http://a.invalid']",
            "agent.allowed_hosts is 'http://a.invalid'",
            "host names, without scheme",
            id="host-with-scheme",
        ),
        pytest.param("[verifier]\nenv = []", "verifier.env is []", "a table of variables", id="env"),
        pytest.param("[verifier.env]\nPORT = 80", "verifier.env.PORT is 80 (a number)", "put it in quotes", id="value"),
        pytest.param("[verifier.env]\n'A=B' = ''", "verifier.env.A=B", "a variable name without =", id="variable"),
        pytest.param(
            "[verifier]\nenvironment_mode = 'own'",
            "verifier.environment_mode is 'own'",
            "shared, separate",
            id="environment-mode",
        ),
        pytest.param("[[verifier.collect]]", "verifier.collect[0].command is missing", "a value", id="collect"),
        pytest.param("[environment]\ncpus = 'two'", "environment.cpus is 'two'", "a number above 0", id="cpus"),
        pytest.param(
            "[environment]\nmemory_mb = 1.5", "environment.memory_mb is 1.5", "a whole number of at least 1", id="whole"
        ),
        pytest.param("[environment]\nmemory_mb = nan", "environment.memory_mb is nan", "a whole number", id="nan"),
        pytest.param("[environment]\nmemory = 2", "environment.memory is 2", 'a size such as "2G"', id="size"),
        pytest.param("[environment]\nmemory = '2 pots'", "environment.memory is", 'a size such as "2G"', id="unit"),
        pytest.param(
            "[environment]\nallow_internet = 1", "environment.allow_internet is 1", "true or false", id="flag"
        ),
        pytest.param("[environment]\nos = 'plan9'", "environment.os is 'plan9'", "linux, windows", id="os"),
        pytest.param("[environment]\ngpu_types = 'T4'", "environment.gpu_types is 'T4'", "a list of texts", id="texts"),
        pytest.param("[environment]\nworkdir = ''", "environment.workdir is ''", "not empty", id="empty-text"),
        pytest.param(
            "[environment.healthcheck]", "environment.healthcheck.command is missing", "a value", id="healthcheck"
        ),
        pytest.param(
            "[[environment.mcp_servers]]\nname = 'clock'",
            "environment.mcp_servers[0].url is missing",
            "where transport is sse",
            id="server-url",
        ),
        pytest.param(
            "[[environment.mcp_servers]]\nname = 'clock'\ntransport = 'stdio'",
            "environment.mcp_servers[0].command is missing",
            "where transport is stdio",
            id="server-command",
        ),
        pytest.param(
            "[environment]\nskills_dir = '../skills'", "environment.skills_dir is '../skills'", "without ..", id="up"
        ),
        pytest.param(
            "[environment]\nskills_dir = 'none'",
            "environment.skills_dir is 'none'",
            "a directory of the task, or an absolute path in the sandbox",
            id="no-skills",
        ),
        pytest.param("[task]\nname = '../x'", "task.name is '../x'", "name or org/name of letters", id="traversal"),
        pytest.param("[task]\nname = 'a/../x'", "task.name is 'a/../x'", "name or org/name", id="inner-traversal"),
        pytest.param("[task]\nname = '/etc'", "task.name is '/etc'", "name or org/name", id="absolute-name"),
        pytest.param(
            "[task]\nauthors = ['Ada']", "task.authors[0] is 'Ada'", "a table with the keys name", id="author"
        ),
        pytest.param("[[steps]]\nname = '..'", "steps[0].name is '..'", "the name of a directory in steps/", id="step"),
        pytest.param("[[steps]]\nname = 'a/b'", "steps[0].name is 'a/b'", "the name of a directory", id="step-path"),
        pytest.param("[[steps]]", "steps[0].name is missing", "a value for it", id="step-without-name"),
        pytest.param("[[steps]]\nname = 'boil'", "steps names boil", "a directory steps/boil/", id="step-directory"),
    ],
)
def test_a_wrong_value_names_file_key_and_what_is_allowed(write: Write, text: str, key: str, allowed: str) -> None:
    with pytest.raises(TaskError) as raised:
        load_task(write({"task.toml": text + "\n"}))
    message = str(raised.value)
    assert message.startswith("tea-timer/task.toml: ")
    assert key in message
    assert allowed in message.partition("; allowed: ")[2]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"task.toml": "a = \n"}, r"not valid TOML: .*line 1", id="toml"),
        pytest.param({"task.toml": f"a = {'[' * 9000}"}, "not valid TOML", id="nested-too-deeply"),
        pytest.param({"task.toml": f"a = {'9' * 9000}"}, "not valid TOML", id="too-many-digits"),
        pytest.param({"instruction.md": None}, r"there is no instruction\.md", id="no-instruction"),
        pytest.param({"instruction.md": " \n"}, r"the instruction is empty", id="empty-instruction"),
        pytest.param({"tests/test.sh": None}, r"no verifier; a task needs tests/test\.sh", id="no-verifier"),
        pytest.param(
            {"tests/test.sh": None, "tests/check.py": ""}, r"no verifier; a task needs tests/test\.sh", id="no-script"
        ),
    ],
)
def test_what_a_task_lacks_is_said(write: Write, files: dict[str, str | None], message: str) -> None:
    with pytest.raises(TaskError, match=rf"\Atea-timer/task\.toml: .*{message}"):
        load_task(write(files))


def test_text_that_is_not_utf8_is_refused(write: Write) -> None:
    path = write()
    (path / "instruction.md").write_bytes(b"Brew \xff")
    with pytest.raises(TaskError, match=r"\Atea-timer/instruction\.md: byte 5 is not UTF-8"):
        load_task(path)


def test_a_byte_order_mark_is_not_part_of_the_text(write: Write) -> None:
    task = load_task(write({"task.toml": "\ufeffversion = '1.1'\n", "instruction.md": "\ufeffBrew.\n"}))
    assert (task.schema_version, task.steps[0].instruction) == ("1.1", "Brew.\n")


STEPS = """
multi_step_reward_strategy = "final"
[agent]
timeout_sec = 60
user = "brewer"
[verifier]
timeout_sec = 20
env = { LEAF = "oolong", CUPS = "1" }
[[steps]]
name = "boil"
min_reward = 0.5
artifacts = ["/app/kettle.log"]
[steps.healthcheck]
command = "true"
[[steps]]
name = "pour"
min_reward = { taste = 0.9 }
[steps.agent]
timeout_sec = 10
[steps.verifier]
env = { CUPS = "2" }
"""
STEP_FILES: dict[str, str | None] = {
    "task.toml": STEPS,
    "instruction.md": None,
    "steps/boil/instruction.md": "Boil.\n",
    "steps/pour/instruction.md": "Pour.\n",
    "steps/pour/tests/test.sh": "true\n",
    "steps/pour/solution/solve.sh": "true\n",
    "steps/pour/workdir/setup.sh": "true\n",
}


def test_steps_take_from_the_task_what_they_do_not_say(write: Write) -> None:
    task = load_task(write(STEP_FILES))
    boil, pour = task.steps
    assert task.multi_step_reward_strategy == "final"
    assert [boil.name, pour.name] == ["boil", "pour"]
    assert [boil.instruction, pour.instruction] == ["Boil.\n", "Pour.\n"]
    assert [boil.agent, pour.agent] == [AgentPhase(60, "brewer"), AgentPhase(10, "brewer")]
    assert boil.verifier.env == {"LEAF": "oolong", "CUPS": "1"}
    assert pour.verifier.env == {"LEAF": "oolong", "CUPS": "2"}
    assert pour.verifier.timeout_sec == 20
    assert (boil.min_reward, pour.min_reward) == (0.5, {"taste": 0.9})
    assert (boil.healthcheck, boil.artifacts) == (Healthcheck("true"), (Artifact("/app/kettle.log"),))


def test_a_steps_tests_lie_over_those_all_steps_share(write: Write) -> None:
    task = load_task(write(STEP_FILES))
    boil, pour = task.steps
    assert (boil.tests, boil.shared_tests) == (task.path / "tests", None)
    assert (pour.tests, pour.shared_tests) == (task.path / "steps/pour/tests", task.path / "tests")
    assert (boil.test_script, pour.test_script) == (task.path / "tests/test.sh", task.path / "steps/pour/tests/test.sh")
    assert pour.solution == task.path / "steps/pour/solution"
    assert (pour.workdir, pour.setup) == (task.path / "steps/pour/workdir", task.path / "steps/pour/workdir/setup.sh")
    assert (boil.solution, boil.setup, boil.workdir) == (None, None, None)


def test_a_step_with_data_only_is_scored_by_the_shared_script(write: Write) -> None:
    files: dict[str, str | None] = {"steps/pour/tests/test.sh": None, "steps/pour/tests/expected.txt": "hot"}
    task = load_task(write({**STEP_FILES, **files}))
    pour = task.steps[1]
    assert (pour.tests, pour.shared_tests) == (task.path / "steps/pour/tests", task.path / "tests")
    assert pour.test_script == task.path / "tests/test.sh"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"steps/pour/instruction.md": None}, r"there is no steps/pour/instruction\.md", id="instruction"),
        pytest.param({"tests/test.sh": None}, r"no verifier; a task needs steps/boil/tests/test\.sh", id="verifier"),
        pytest.param(
            {"task.toml": STEPS.replace('"pour"', '"boil"')},
            r"steps holds boil twice; allowed: each name once",
            id="name",
        ),
    ],
)
def test_what_a_step_lacks_is_said(write: Write, files: dict[str, str | None], message: str) -> None:
    with pytest.raises(TaskError, match=rf"\Atea-timer/task\.toml: .*{message}"):
        load_task(write({**STEP_FILES, **files}))


def test_a_verifier_with_its_own_machine_runs_on_it(write: Write) -> None:
    task = load_task(write({"task.toml": "[verifier.environment]\ncpus = 1\n"}))
    assert task.steps[0].verifier.environment_mode == "separate"


@pytest.mark.parametrize(
    ("skills_dir", "place"),
    [
        pytest.param(None, "environment/skills", id="usual-place"),
        pytest.param("/skills", "environment/skills", id="place-in-the-sandbox"),
        pytest.param("know-how", "know-how", id="below-the-task"),
        pytest.param("guides", "environment/guides", id="below-the-environment"),
    ],
)
def test_skills_are_found_and_named(write: Write, skills_dir: str | None, place: str) -> None:
    text = f"[environment]\nskills_dir = '{skills_dir}'\n" if skills_dir else ""
    files = {f"{place}/{name}/SKILL.md": "---\nname: x\n---\n" for name in ("steep", "boil")}
    task = load_task(write({"task.toml": text, **files, f"{place}/notes/README.md": ""}))
    assert task.skills == ("boil", "steep")
    assert task.skills_path == task.path / place
    assert task.environment.skills_dir == skills_dir


def test_a_task_without_skills_has_none(write: Write) -> None:
    task = load_task(write({"task.toml": "[environment]\nskills_dir = '/skills'\n"}))
    assert (task.skills, task.skills_path) == ((), None)


def test_a_compose_file_is_found(write: Write) -> None:
    task = load_task(write({"environment/docker-compose.yaml": "services: {}\n"}))
    assert task.compose_file == task.path / "environment/docker-compose.yaml"
