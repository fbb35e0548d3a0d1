"""The part of the store interface for what people decide while workers run: see `model/control.py`."""

from __future__ import annotations

from typing import Protocol

from reltask.model.control import Pause, PauseKind, PauseView


class ControlStore(Protocol):
    """Pauses of queues and tasks."""

    async def add_pause(self, pause: Pause) -> bool:
        """Keep the jobs of a queue or a task from being claimed; False: it is paused already, and nothing changed."""
        ...

    async def end_pause(self, kind: PauseKind, name: str) -> bool:
        """Let the jobs of a queue or a task be claimed again; False: it was not paused."""
        ...

    async def list_pauses(self) -> list[PauseView]:
        """The queues and tasks that are paused, the oldest pause first."""
        ...
