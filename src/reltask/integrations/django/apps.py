"""The Django application: `manage.py reltask`, the migrations, and the admin pages."""

from __future__ import annotations

from django.apps import AppConfig


class ReltaskConfig(AppConfig):
    """Add "reltask.integrations.django" to INSTALLED_APPS."""

    name = "reltask.integrations.django"
    label = "reltask"
    verbose_name = "reltask"
    default_auto_field = "django.db.models.BigAutoField"
