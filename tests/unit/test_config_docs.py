"""The page about the settings is generated from their types and complete, and its examples work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from reltask.config import describe_settings, load_settings, render_settings
from reltask.config.fields import by_dotnet_name, fields
from reltask.model.connection_url import fold

ROOT = Path(__file__).parents[2]
NOWHERE = Path("/nonexistent")


def example(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", describe_settings(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_page_is_up_to_date() -> None:
    """docs/configuration.md equals the output of describe_settings; its first lines say how to generate it."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == describe_settings()


def test_the_page_is_complete() -> None:
    """Each setting has a row with its key, variable, .NET names and a meaning that is a sentence."""
    page = describe_settings()
    for field in fields().values():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{field.key}` "))
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 6
        assert cells[3] == f"`{field.variable}`"
        assert cells[5].endswith(".")


def test_documented_dotnet_names_are_known() -> None:
    """Every .NET name in the page is one that is read."""
    names = re.findall(r"`TaskExecution:(\w+)`", describe_settings())
    assert len(names) > 10
    assert all(fold(name) in by_dotnet_name() for name in names)


def test_the_examples_of_files_work(tmp_path: Path) -> None:
    """Both files of the page can be used unchanged."""
    (tmp_path / "reltask.toml").write_text(example("toml"))
    worker = load_settings(environ={}, directory=tmp_path).settings.worker
    assert (worker.concurrency, worker.queue_concurrency) == (20, {"mail": 2})
    (tmp_path / "reltask.toml").unlink()
    (tmp_path / "appsettings.json").write_text(example("json"))
    settings = load_settings(environ={}, directory=tmp_path).settings
    assert (settings.worker.queues, settings.worker.shutdown_grace) == (("default", "mail"), timedelta(minutes=1))
    assert settings.database.url == "mssql://yourserver.database.windows.net:1433/TaskExecutionDb?encrypt=true"
    assert json.loads(example("json"))["TaskExecution"]["PollingIntervalSeconds"] == 60


def test_the_example_of_the_environment_works() -> None:
    """The variables can be used unchanged too."""
    environ = dict(re.findall(r"export (\w+)='?([^'\n]*)'?", example("sh")))
    settings = load_settings(environ=environ, directory=NOWHERE).settings
    assert (settings.worker.concurrency, settings.worker.poll) == (4, timedelta(seconds=5))


def test_rendered_settings() -> None:
    """`reltask config` shows every setting in a form that can be written back, and the value of auto."""
    arguments = {"worker.lock_timeout": "1m", "worker.queues": "a,b", "worker.queue_concurrency": "a=1,b=2"}
    rows = {
        name: (value, origin)
        for name, value, origin in render_settings(load_settings(environ={}, directory=NOWHERE, arguments=arguments))
    }
    assert rows.keys() == fields().keys()
    assert rows["worker.lock_timeout"] == ("1m", "argument")
    assert rows["worker.heartbeat"] == ("15s", "default, follows from worker.lock_timeout")
    assert rows["worker.queues"] == ("a, b", "argument")
    assert rows["worker.queue_concurrency"] == ("a=1, b=2", "argument")
    assert rows["database.url"] == ("not set", "default")
    shown = {name: value for name, (value, _) in rows.items() if value not in ("not set", "none")}
    again = load_settings(environ={}, directory=NOWHERE, arguments=shown)
    assert again.settings.worker.pace().heartbeat == 15


@pytest.mark.slow
def test_importing_the_settings_is_cheap() -> None:
    """What only files, errors or unusual URLs need is not imported with the settings: every command pays for it."""
    code = (
        "import sys, click, msgspec; before = set(sys.modules); import reltask.config;"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('reltask')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"json", "tomllib", "difflib", "pathlib", "urllib", "urllib.parse", "ast"}
