"""Pausing queues and tasks from Python: see `model/control.py` for what a pause is."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Coroutine
from typing import Any

from reltask.errors import UsageError
from reltask.model.control import Pause, PauseKind, PauseView
from reltask.model.task import Registry, check_text
from reltask.producer.client import Client
from reltask.producer.enqueue import Enqueuer
from reltask.producer.task import Producer
from reltask.stores.store import Store

LONGEST = {"queue": 128, "task": 256, "reason": 500, "by": 200}
"""Characters; the databases' own bounds are not lower."""


class Pausing:
    """Each as a coroutine and, with the suffix `_sync`, for synchronous code."""

    registry: Registry
    _client: Client
    _enqueuer: Enqueuer

    def pause(
        self,
        *,
        queue: str | None = None,
        task: Producer[..., Any] | str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> Coroutine[Any, Any, bool]:
        """Let no worker claim a job of this queue, or of this task, until `resume`.

        What runs goes on, and enqueueing goes on. `by` is who pauses it, by default user and host. Returns False if it
        is paused already: then the first pause stays as it is.
        """
        pauses = self._pauses(queue, task, reason, by)
        return self._client.run(lambda store: _add(store, pauses), name="pause")

    def pause_sync(
        self,
        *,
        queue: str | None = None,
        task: Producer[..., Any] | str | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """`pause` for synchronous code."""
        pauses = self._pauses(queue, task, reason, by)
        return self._client.run_sync(lambda store: _add(store, pauses), name="pause")

    def resume(
        self, *, queue: str | None = None, task: Producer[..., Any] | str | None = None
    ) -> Coroutine[Any, Any, bool]:
        """Let workers claim it again, and wake them. Returns False if it was not paused."""
        names = self._named(queue, task)
        return self._client.run(lambda store: self._end(store, *names), name="resume")

    def resume_sync(self, *, queue: str | None = None, task: Producer[..., Any] | str | None = None) -> bool:
        """`resume` for synchronous code."""
        names = self._named(queue, task)
        return self._client.run_sync(lambda store: self._end(store, *names), name="resume")

    def pauses(self) -> Coroutine[Any, Any, list[PauseView]]:
        """The queues and tasks that are paused, the oldest pause first."""
        return self._client.run(lambda store: store.list_pauses(), name="pauses")

    def pauses_sync(self) -> list[PauseView]:
        """`pauses` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_pauses(), name="pauses")

    def _pauses(
        self, queue: str | None, task: Producer[..., Any] | str | None, reason: str | None, by: str | None
    ) -> list[Pause]:
        kind, names = self._named(queue, task)
        _check("reason", reason)
        _check("by", by)
        said = by or _user()
        return [Pause(kind=kind, name=name, reason=reason, paused_by=said) for name in names]

    def _named(self, queue: str | None, task: Producer[..., Any] | str | None) -> tuple[PauseKind, tuple[str, ...]]:
        """What is meant: a queue, or a task under every name that its jobs may have."""
        if (queue is None) == (task is None):
            raise UsageError("A pause is of a queue or of a task.", remedy="Give queue=… or task=….")
        if queue is not None:
            _check("queue", queue)
            return PauseKind.QUEUE, (queue,)
        if isinstance(task, Producer):
            return PauseKind.TASK, task.definition.names
        _check("task", task)
        name = task or ""
        known = self.registry.tasks.get(name)
        return PauseKind.TASK, (name,) if known is None else known.names

    async def _end(self, store: Store, kind: PauseKind, names: tuple[str, ...]) -> bool:
        ended = [await store.end_pause(kind, name) for name in names]
        if any(ended):
            await self._enqueuer.access.sender.signal(store)
        return any(ended)


async def _add(store: Store, pauses: list[Pause]) -> bool:
    return any([await store.add_pause(pause) for pause in pauses])


def _check(label: str, value: object) -> None:
    check_text(label, value, UsageError)
    if value == "" or (isinstance(value, str) and len(value) > LONGEST[label]):
        raise UsageError(f"{label}= must have 1 to {LONGEST[label]} characters.")


def _user() -> str:
    """Who runs this process, as far as the machine can tell."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[: LONGEST["by"]]
