"""A compose file is read as public tasks write them; what is not understood is a skip that names the key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_benchflow.errors import TaskError
from pytest_benchflow.sandboxes._docker.compose import Recipe, read_compose
from pytest_benchflow.sandboxes.docker import backend
from tests.contracts.sandboxrig import make_task

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchflow.tasks.task import Task

SIDE = "services:\n  db:\n    image: postgres:16\n    "


def composed(path: Path, text: str, **environment: Any) -> Task:
    task = make_task(path, dockerfile="FROM debian:12\n", **environment)
    assert task.environment_dir is not None
    (task.environment_dir / "docker-compose.yaml").write_text(text)
    (task.environment_dir / "init.sql").write_text("create table t ();")
    return replace(task, compose_file=task.environment_dir / "docker-compose.yaml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(
            SIDE + "privileged: true", "needs services.db.privileged of docker-compose.yaml, a right", id="all"
        ),
        pytest.param(SIDE + "network_mode: host", "needs services.db.network_mode=host", id="hosts-network"),
        pytest.param(SIDE + "pid: host", "needs services.db.pid of docker-compose.yaml, which the docker", id="pid"),
        pytest.param(SIDE + "cap_add: [SYS_ADMIN]", "needs services.db.cap_add=SYS_ADMIN", id="rights"),
        pytest.param(
            SIDE + "volumes: ['/var/run/docker.sock:/s']", "needs /var/run/docker.sock of docker", id="socket"
        ),
        pytest.param(SIDE + "volumes: ['../..:/s']", "needs ../.. of docker-compose.yaml, a path of the host", id="up"),
        pytest.param(SIDE + "extra_hosts: ['h:host-gateway']", "needs services.db.extra_hosts=h", id="host-gateway"),
        pytest.param(SIDE + "environment: {A: '${TOKEN}'}", "needs services.db.environment of docker", id="unset"),
        pytest.param(
            SIDE + "gizmo: 1", "needs services.db.gizmo of docker-compose.yaml, which the docker", id="unknown"
        ),
        pytest.param(SIDE + "deploy: {replicas: 2}", "needs services.db.deploy.replicas of", id="replicas"),
        pytest.param("services: {}\nsecrets: {a: {file: b}}\n", "needs secrets of docker-compose.yaml", id="secrets"),
        pytest.param("services: {}\nnetworks: {a: {driver: macvlan}}\n", "needs networks.a.driver of", id="driver"),
        pytest.param(
            "services: {main: {command: [python3, serve.py]}}", "needs services.main.command of", id="main-works"
        ),
        pytest.param("services: {db: {build: {dockerfile: modern}}}", "needs BuildKit", id="buildkit"),
        pytest.param(SIDE + "restart: always", None, id="restart"),
        pytest.param("services: {main: {command: [sh, -c, sleep infinity]}}", None, id="main-waits"),
        pytest.param("services: {main: {command: tail -f /dev/null}}", None, id="main-tails"),
    ],
)
def test_what_is_not_understood_is_a_skip_that_names_the_key(tmp_path: Path, text: str, reason: str | None) -> None:
    task = composed(tmp_path, text)
    assert task.environment_dir is not None
    (task.environment_dir / "modern").write_text("FROM debian\nRUN --mount=type=cache,target=/x true\n")
    said = backend.unsupported(task)
    assert (said or "").startswith(reason or "")
    assert (said is None) == (reason is None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("services: [db]", r"services is \['db'\]; it takes a mapping", id="list"),
        pytest.param("services: {db: {image: a", "cannot be read: while parsing", id="not-yaml"),
        pytest.param("services: {db: {environment: {A: b}}}", "services.db has neither image nor build", id="nothing"),
        pytest.param(SIDE + "volumes: ['data:/data']", "the volume data is not declared", id="volume"),
        pytest.param(SIDE + "networks: [back]", "the network back is not declared", id="network"),
        pytest.param(SIDE + "mem_limit: much", "mem_limit is 'much'; it takes a size", id="size"),
        pytest.param(SIDE + "healthcheck: {test: a, interval: soon}", "takes a duration such as 10s", id="duration"),
        pytest.param(
            "services:\n  a: {image: x, depends_on: [b]}\n  b: {image: x, depends_on: [a]}\n",
            "a, b depend on each other",
            id="circle",
        ),
        pytest.param(
            "".join(f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else '1'] * 9)}]\n" for n in range(8))
            + "services: {main: {environment: *a7}}",
            r"its aliases \(\*NAME\) make more than 10000 values of it",
            id="more-than-memory-holds",
        ),
        pytest.param(
            "services: {db: &db {image: a, environment: *db}}",
            r"its aliases .* or contain themselves",
            id="in-itself",
        ),
    ],
)
def test_a_mistake_in_it_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        read_compose(composed(tmp_path, text))


def test_what_public_tasks_write_is_understood(tmp_path: Path) -> None:
    text = """\
version: "3.8"
x-common: &common {restart: unless-stopped}
services:
  main:
    <<: *common
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${TEST_DIR}", "LEVEL=${LEVEL:-3}"]
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - type: bind
        source: ${HOST_ARTIFACTS_PATH}
        target: ${ENV_ARTIFACTS_PATH}
    deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
    depends_on: {api: {condition: service_started}}
  api:
    build: .
    depends_on: {db: {condition: service_healthy}}
    networks: {back: {aliases: [backend]}, default: {}}
  db:
    image: postgres:${PG:-16}
    container_name: pg
    environment: {POSTGRES_PASSWORD: pw, DEBUG: true, PASSED: null}
    env_file: more.env
    healthcheck: {test: "pg_isready -U $$USER", interval: 1m30s, timeout: 5s, retries: 10, start_period: 500ms}
    volumes: ["pgdata:/var/lib/postgresql/data", "./init.sql:/docker-entrypoint-initdb.d/init.sql:ro", "/cache"]
    tmpfs: /run:size=1m
    shm_size: 256mb
    networks: [back]
  tools: {image: tools, profiles: [debug], privileged: true}
networks: {back: {internal: true}}
volumes: {pgdata: }
"""
    task = composed(tmp_path, text, cpus=2.0, memory_mb=512, env={"PASSED": "on"})
    assert task.environment_dir is not None
    (task.environment_dir / "more.env").write_text("# comment\nexport MORE='a b'\nDEBUG=no\n")
    found = read_compose(task)
    assert [each.name for each in found.side] == ["db", "api"]
    assert found.networks == ("back", "default")
    assert (sorted(found.closed), found.volumes) == (["back"], ("pgdata",))
    main, (db, api) = found.main, found.side
    assert isinstance(main.image, Recipe)
    assert main.config["Env"] == ["TEST_DIR=/tests", "LEVEL=3"]
    assert (main.copies, main.memory_mb, main.cpus, main.depends) == ((), 512, 2.0, {"api": "service_started"})
    assert api.networks == {"back": ("backend",), "default": ()}
    assert (db.image, db.networks, db.depends) == ("postgres:16", {"back": ("pg",)}, {})
    assert db.config["Env"] == ["POSTGRES_PASSWORD=pw", "DEBUG=true", "PASSED=on", "MORE=a b"]
    assert db.config["Healthcheck"] == {
        "Test": ["CMD-SHELL", "pg_isready -U $USER"],
        "Interval": 90 * 10**9,
        "Timeout": 5 * 10**9,
        "Retries": 10,
        "StartPeriod": 5 * 10**8,
    }
    assert db.copies == ((task.environment_dir / "init.sql", "/docker-entrypoint-initdb.d/init.sql"),)
    assert (db.volumes, db.config["Volumes"]) == ((("pgdata", "/var/lib/postgresql/data", False),), {"/cache": {}})
    assert db.host == {"Tmpfs": {"/run": "size=1m"}, "ShmSize": 256 << 20}
