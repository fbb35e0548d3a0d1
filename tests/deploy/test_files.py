"""The files in `deploy`: what can be checked without building an image or reaching a cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from reltask.model.settings import WorkerSettings
from tests.cluster.cluster import ROOT, eventually, running

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
UNIT = DEPLOY / "reltask-worker@.service"
KUBERNETES = DEPLOY / "kubernetes"
WORKER = (KUBERNETES / "worker.yaml").read_text(encoding="utf-8")
STOP_GRACE = timedelta(seconds=10)
"""The longest that reltask derives by itself."""


def exec_form(instruction: str) -> list[str]:
    """The last instruction of this kind, which must be a JSON list: a shell would swallow SIGTERM."""
    found = re.findall(rf"^\s*{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    words: list[str] = json.loads(found[-1])
    return words


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (COMPOSE, r"stop_grace_period: (\d+)s"),
        (UNIT.read_text(encoding="utf-8"), r"TimeoutStopSec=(\d+)"),
        (WORKER, r"terminationGracePeriodSeconds: (\d+)"),
    ],
    ids=["compose", "systemd", "kubernetes"],
)
def test_no_worker_is_killed_before_its_grace_is_over(text: str, pattern: str) -> None:
    """Each file waits longer than the defaults of `worker.shutdown_grace` and of the stop grace together."""
    found = re.search(pattern, text)
    assert found is not None
    assert timedelta(seconds=int(found[1])) > WorkerSettings().shutdown_grace + STOP_GRACE


def test_image_runs_as_a_user_and_receives_signals() -> None:
    """The last stage has a user that is not root, no shell in front of the worker, and pinned bases."""
    assert exec_form("ENTRYPOINT") == ["reltask"]
    assert exec_form("CMD") == ["worker"]
    assert '["reltask", "worker", "--health"]' in DOCKERFILE
    last_stage = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (\S+)$", last_stage, re.MULTILINE) == ["10001"]
    assert "STOPSIGNAL SIGTERM" in last_stage
    assert ":latest" not in DOCKERFILE + COMPOSE
    assert "runAsUser: 10001" in WORKER


def test_no_password_is_in_a_file() -> None:
    """They come from the shell, a file with mode 0600, or a secret."""
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.is_file()]
    found = [match for text in texts for match in re.findall(r"://[^\s:/@]+:([^\s@]+)@", text)]
    assert {match.partition(":?")[0] for match in found} <= {"${POSTGRES_PASSWORD"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="NOT RUN: there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say about it, once the program exists."""
    program = tmp_path / "reltask"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/shop/venv/bin/reltask", str(program)))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]  # it reads the machine's units as well
    assert (done.returncode, about_it) == (0, [])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="NOT RUN: there is no kubectl")
def test_kustomize_renders_the_manifests() -> None:
    """All resources are there, with the image that is set in one place."""
    done = subprocess.run(["kubectl", "kustomize", str(KUBERNETES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"^kind: (\w+)$", done.stdout, re.MULTILINE)) == ["Deployment", "Job", "ScaledObject"]
    assert set(re.findall(r"image: (\S+)", done.stdout)) == {"registry.example.com/shop-worker:1.0.0"}


def compose() -> list[str] | None:
    """The command of compose v2, with or without docker. It needs no daemon to read a file."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is not None:
            said = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
            if said.returncode == 0 and not said.stdout.startswith("1."):
                return command
    return None


def test_compose_reads_the_file_and_asks_for_a_password() -> None:
    """Three workers after one migration after a healthy database; without POSTGRES_PASSWORD nothing starts."""
    command = compose()
    if command is None:
        pytest.skip("NOT RUN: there is no docker compose")
    config = [*command, "--file", str(DEPLOY / "compose.yaml"), "config", "--format", "json"]
    environment = {name: value for name, value in os.environ.items() if name != "POSTGRES_PASSWORD"}
    refused = subprocess.run(config, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "set it in the shell" in refused.stderr
    given = {**environment, "POSTGRES_PASSWORD": "made-up"}
    read = json.loads(subprocess.run(config, env=given, capture_output=True, text=True, check=True).stdout)
    services = read["services"]
    assert services["worker"]["deploy"]["replicas"] == 3
    assert list(services["worker"]["depends_on"]) == ["migrate"]
    assert services["migrate"]["depends_on"]["database"]["condition"] == "service_healthy"
    assert services["worker"]["environment"]["RELTASK_DATABASE_URL"].startswith(
        "postgresql://reltask:made-up@database/"
    )


async def test_scaler_counts_what_could_be_claimed(postgres_url: str) -> None:
    """The query of the KEDA trigger runs on the real tables: due jobs count, paused and future ones do not."""
    text = (KUBERNETES / "scale.yaml").read_text(encoding="utf-8")
    query = " ".join(text.partition("query: >-\n")[2].split())
    connection = await asyncpg.connect(postgres_url)
    try:
        add = "insert into reltask.jobs (id, task, queue, next_run_time) values (gen_random_uuid(), $1, $2, now() + $3)"
        for task, queue, delay in [("a", "q", 0), ("a", "q", 3600), ("b", "q", 0), ("a", "mail", 0)]:
            await connection.execute(add, task, queue, timedelta(seconds=delay - 1))
        assert await connection.fetchval(query) == 3
        pause = "insert into reltask.pauses values ($1, $2, null, 'me', now())"
        await connection.execute(pause, "queue", "mail")
        await connection.execute(pause, "task", "b")
        assert await connection.fetchval(query) == 1
    finally:
        await connection.close()


@pytest.mark.slow
def test_entry_command_is_healthy_while_it_runs_and_ends_at_sigterm(tmp_path: Path) -> None:
    """What the image starts: `--health` says 0 while the worker lives, 1 before and after; SIGTERM ends it with 0."""
    url = f"sqlite:///{tmp_path / 'cluster.db'}"
    with running(url, tmp_path) as cluster:
        cluster.jobs()
        command = [sys.executable, "-m", "reltask.cli", *exec_form("CMD")]
        environment = {**os.environ, **cluster._environment, "RELTASK_APP": "tests.cluster.workload:app"}

        def health() -> int:
            return subprocess.run(
                [*command, "--health"], env=environment, cwd=ROOT, capture_output=True, check=False
            ).returncode

        assert health() == 1
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            eventually(lambda: health() == 0, what="the worker is healthy")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
        assert health() == 1
