"""Settings: small frozen values, from five places, each value with the place where it was written.

    command line    --concurrency 4                                  wins over
    code            App("sqlite:///reltask.db")                      wins over
    environment     RELTASK_WORKER_POLL=5s                           wins over
                    TaskExecution__PollingIntervalSeconds=5
    file            ./reltask.toml or ./appsettings.json             wins over
    defaults        the types in settings.py

What is not written anywhere is absent until the end, so "not given" and "given, and equal to the default" stay apart.
A wrong name or value stops the program with its place and the name that was probably meant: a setting that is silently
ignored costs somebody a night. Passwords are refused where others can read them, and shown nowhere.

    settings.py  what there is         sources.py  names, place by place      load.py      puts it together
    fields.py    the same as a list    values.py   text to values             describe.py  shows it
"""

from reltask.config.describe import describe_settings, render_settings
from reltask.config.load import Loaded, load_settings
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
