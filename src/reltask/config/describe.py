"""Output of the settings: those of this process, and docs/configuration.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from reltask.config.fields import Field, fields, sections
from reltask.config.load import DEFAULT, Loaded
from reltask.model.connection_url import safe_url
from reltask.model.duration import format_duration
from reltask.model.settings import Settings

_FOLLOWS_LOCK = ("heartbeat", "beat_timeout", "stop_grace")
_KINDS = {
    "duration": "duration",
    "count": "number",
    "text": "text",
    "names": "list of names",
    "limits": "table of numbers",
    "url": "URL",
}


def render_settings(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Name, value and origin of every setting, without secrets; values derived from the lock timeout are computed."""
    pace = loaded.settings.worker.pace()
    rows = []
    for key, field in fields().items():
        value = getattr(getattr(loaded.settings, field.section), field.name)
        origin = loaded.origins.get(key, DEFAULT)
        if value is None and field.name in _FOLLOWS_LOCK:
            value = timedelta(seconds=getattr(pace, field.name))
            origin = f"{origin}, follows from worker.lock_timeout"
        rows.append((key, _text(field, value), origin))
    return rows


def describe_settings() -> str:
    """The page docs/configuration.md."""
    tables = [_section(name, cls.__doc__ or "") for name, cls in sections().items()]
    return "\n".join([_INTRODUCTION, *tables, _together(), _EXAMPLES])


def _text(field: Field, value: Any) -> str:
    match value:
        case None:
            return "auto" if field.kind == "duration" else "not set"
        case timedelta():
            return format_duration(value)
        case tuple():
            return ", ".join(value)
        case dict():
            return ", ".join(f"{name}={limit}" for name, limit in value.items()) or "none"
        case _:
            return safe_url(value) if field.about.secret else str(value)


def _section(name: str, title: str) -> str:
    lines = [
        f"## {name}",
        "",
        title,
        "",
        "| key | type | default | environment variable | .NET name | meaning |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(field) for field in fields().values() if field.section == name]
    return "\n".join([*lines, ""])


def _row(field: Field) -> str:
    kind = " / ".join(f"`{choice}`" for choice in field.choices) or _KINDS[field.kind]
    dotnet = ", ".join(f"`{name}`" for name in _dotnet(field)) or "none"
    default = _text(field, field.default)
    cells = [f"`{field.key}`", kind, default, f"`{field.variable}`", dotnet, field.about.meaning]
    return f"| {' | '.join(cells)} |"


def _dotnet(field: Field) -> list[str]:
    if field.kind == "url":
        return ["ConnectionStrings:SqlAzure", "ConnectionStrings:Reltask"]
    return [f"TaskExecution:{name}" for name in field.about.dotnet]


def _together() -> str:
    settings = Settings()
    worker, pace = settings.worker, settings.worker.pace()
    first = settings.database.retry_first.total_seconds()
    waits = ", ".join(f"{first * 2**n:g}" for n in range(settings.database.retry_attempts))
    return _TOGETHER.format(
        poll=format_duration(worker.poll),
        heartbeat=pace.heartbeat,
        abandon_after=pace.abandon_after,
        patience=pace.patience,
        deadline=pace.deadline(0.0),
        lock=pace.lock_timeout,
        margin=pace.margin,
        shutdown=format_duration(worker.shutdown_grace),
        waits=waits,
        failures=settings.database.breaker_failures,
        reset=format_duration(settings.database.breaker_reset),
        keep_runs=format_duration(settings.maintenance.keep_runs),
        keep_count=settings.maintenance.keep_runs_count,
    )


_INTRODUCTION = """\
# Configuration

<!-- Generated from the settings' types. Change src/reltask/model/settings.py or src/reltask/config, then run:
     python -c "from reltask.config import describe_settings as d; print(d(), end='')" > docs/configuration.md -->

Every setting has a default; most users set only the database. `reltask config` shows each value and where it was set.

## Where settings are written

An earlier place in this list wins.

1. The command line.
2. Code: `App("sqlite:///reltask.db")`.
3. The environment: `RELTASK_` and the key, like `RELTASK_WORKER_POLL=5s`. The .NET names work as well:
   `TaskExecution__PollingIntervalSeconds=5`, `ConnectionStrings__SqlAzure=…`. An empty variable counts as not set.
4. One file: the one named by `--config`, else by `RELTASK_CONFIG`, else `./appsettings.json` or `./reltask.toml`. If
   both of these exist, that is an error.
5. The defaults below.

How to write them:

- Case, underscores and hyphens in a name do not matter: `lock_timeout`, `LockTimeout` and `lock-timeout` are the same.
- A duration is a text with a unit: `"500ms"`, `"10s"`, `"5m"`, `"2h"`, `"3d"`, `"1m30s"`. A number without a unit is an
  error. Only the .NET names take numbers: the last word of the name is the unit, and `Milliseconds`, `Seconds`,
  `Minutes`, `Hours` and `Days` are interchangeable.
- `auto` means that a duration is derived from the lock timeout; that of the lease, from the database.
- Separate the names of a list in a variable by commas: `RELTASK_WORKER_QUEUES=default,mail`. The same holds for a
  table: `RELTASK_WORKER_QUEUE_CONCURRENCY=mail=2,reports=1`.
- An unknown name is an error that suggests the right one. This covers everything in a `reltask.toml` and all variables
  that begin with `RELTASK_`, except `RELTASK_APP`, `RELTASK_CONFIG`, `RELTASK_TEST_…` and the variables that
  Kubernetes sets for a service (`RELTASK_…_SERVICE_HOST` and the like).
- In an `appsettings.json` reltask reads only the sections `TaskExecution`, `Reltask` and `ConnectionStrings`, and of
  the last only `Reltask` and `SqlAzure`. `SqlAzure` is ignored if the same place names the database in another way.

**Who may write the file.** A file can name any database, and so decide what runs. On POSIX systems reltask refuses a
file that belongs to another user than yourself and root, or that every user may write, however it was named; the error
says which command helps. In a container that runs as root, a mounted file has to belong to root, or the container has
to run as its owner. That the file's group may write it is its owner's choice.

**Secrets.** A password in a file or on the command line is an error, because others can read it there. Put the URL into
`RELTASK_DATABASE_URL`, or use a passfile or a managed identity. A password is never shown, logged or quoted in an
error.
"""

_TOGETHER = """\
## What the defaults mean together

- A worker sleeps at most {poll}, and wakes when a job is due. Many idle workers share their looks:
  with signals, more than 120 of them sleep longer; without signals, one of them looks every half second.
- It renews its claims every {heartbeat:g} s. When {abandon_after} heartbeats in a row have failed, it stops the body
  and abandons the job: at most {patience:g} s after it sent the last successful heartbeat.
- In any case it stops the body {deadline:g} s after that moment: the lock timeout of {lock:g} s, less a margin of
  {margin:g} s. The margin is the largest of a tenth of the lock timeout, `worker.beat_timeout` and `worker.stop_grace`.
- {lock:g} s after the last heartbeat another worker may take the job.
- These times are checked together: `abandon_after` heartbeats and one `beat_timeout` must fit into the lock timeout
  less the margin. If you change only the lock timeout, the times that are `auto` adapt to it.
- A task with its own lock timeout uses these times if they fit, otherwise times derived from its lock timeout.
- After SIGTERM or Ctrl+C bodies have {shutdown} to finish; then they are stopped and their jobs released.
- A statement that certainly was not applied is sent again after {waits} s; a random time is added to each wait.
- After {failures} failures in a row no call is sent for {reset}. Heartbeats are exempt.
- One worker at a time does the maintenance. The ledger keeps a run for {keep_runs}, and at most {keep_count:,} runs.
"""

_EXAMPLES = """\
## Examples

`reltask.toml`:

```toml
[database]
url = "postgresql://reltask@db.example.com/app?passfile=/run/secrets/pgpass"

[worker]
queues = ["default", "mail"]
concurrency = 20
poll = "30s"
lock_timeout = "5m"

[worker.queue_concurrency]
mail = 2

[log]
level = "warning"
```

`appsettings.json`, as in .NET programs; comments and trailing commas are allowed:

```json
{
  "ConnectionStrings": {
    "SqlAzure": "Server=tcp:yourserver.database.windows.net,1433;Database=TaskExecutionDb;Encrypt=True;"
  },
  "TaskExecution": {
    "PollingIntervalSeconds": 60,
    "TaskDurationSeconds": 5,
    "HeartbeatIntervalSeconds": 30
  },
  "Reltask": {
    "Worker": { "Queues": ["default", "mail"], "ShutdownGrace": "1m" }
  },
  "Logging": { "LogLevel": { "Default": "Information" } }
}
```

The environment:

```sh
export RELTASK_DATABASE_URL='postgresql://reltask:…@db.example.com/app'
export RELTASK_WORKER_CONCURRENCY=4
export TaskExecution__PollingIntervalSeconds=5
```
"""
