"""`reltask tasks`."""

from __future__ import annotations

from reltask.cli.pauses import pausing
from reltask.model.control import PauseKind

command = pausing(PauseKind.TASK)
