"""Settings: small frozen values, from five places, each value with the place where it was written.

    command line    --concurrency 4                                  wins over
    code            App("sqlite:///reltask.db")                      wins over
    environment     RELTASK_WORKER_POLL=5s                           wins over
                    TaskExecution__PollingIntervalSeconds=5
    file            ./reltask.toml or ./appsettings.json             wins over
    defaults        the types in settings.py

A setting that is written nowhere stays unset until all places are merged, so "not given" differs from "given, and equal
to the default". A wrong name or value is an error that states its place and suggests the right name: a setting must not
be ignored silently. Passwords are refused in places that others can read, and are never shown.

    settings.py  what there is         sources.py  names, place by place      load.py      puts it together
    fields.py    the same as a list    values.py   text to values             describe.py  shows it
"""

from reltask.config.describe import describe_settings, render_settings
from reltask.config.load import IN_CODE, Loaded, load_settings
from reltask.model.connection_url import safe_url
from reltask.model.settings import (
    LEASE_TTL,
    DatabaseSettings,
    LimitSettings,
    LogSettings,
    MaintenanceSettings,
    SampleSettings,
    Settings,
    WorkerSettings,
)

__all__ = [
    "IN_CODE",
    "LEASE_TTL",
    "DatabaseSettings",
    "LimitSettings",
    "Loaded",
    "LogSettings",
    "MaintenanceSettings",
    "SampleSettings",
    "Settings",
    "WorkerSettings",
    "describe_settings",
    "load_settings",
    "render_settings",
    "safe_url",
]
