"""A project unlike the example: "default" is not reltask's, two other aliases are, and USE_TZ is off."""

from __future__ import annotations

import django
from shop.settings import *  # noqa: F403 - Django's way of varying settings
from shop.settings import INSTALLED_APPS

USE_TZ = False
TIME_ZONE = "America/New_York"
INSTALLED_APPS = [name for name in INSTALLED_APPS if name != "shop"]
TASKS = {
    "default": {
        "BACKEND": f"{'django.tasks' if django.VERSION >= (6, 0) else 'django_tasks'}.backends.dummy.DummyBackend"
    },
    "jobs": {
        "BACKEND": "reltask.integrations.django.Backend",
        "QUEUES": ["default", "bulk"],
        "OPTIONS": {"imports": ["tests.integrations.django_other_checks"]},
    },
    "slow": {"BACKEND": "reltask.integrations.django.Backend", "QUEUES": ["default", "night"]},
}
