"""`manage.py reltask …`: reltask's own command line, on the database and the tasks of this project."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from reltask.cli import run

APP = "reltask.integrations.django.project:create_app()"


class Command(BaseCommand):
    """Pass the arguments on as they are."""

    help = "Run reltask's command line on this project: manage.py reltask worker, status, jobs list, …"
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        """Instead of Django's own parser: every command of reltask has options of its own."""
        sys.exit(self.call(argv[2:]))

    def handle(self, *args: str, **_: Any) -> None:
        """For `call_command("reltask", "status")`."""
        code = self.call(list(args))
        if code:
            raise SystemExit(code)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs="*")

    def call(self, arguments: list[str]) -> int:
        """Run a command line; RELTASK_APP names another app."""
        os.environ.setdefault("RELTASK_APP", APP)
        if arguments[:1] == ["worker"] and not settings.LOGGING:
            # Django's own console would print what the worker's log has already
            logger = logging.getLogger("django")
            logger.handlers = [handler for handler in logger.handlers if handler.get_name() != "console"]
        return run(arguments, program="manage.py reltask")
