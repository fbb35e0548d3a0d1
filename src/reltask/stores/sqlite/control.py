"""Pauses on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from reltask.model.control import Pause, PauseKind, PauseView
from reltask.stores.sqlite.values import moment

Rows = list[Any]


class ControlVerbs(ABC):
    """What people decide while workers run."""

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _wins(self, verb: str, **parameters: object) -> bool: ...

    async def add_pause(self, pause: Pause) -> bool:
        return await self._wins("add_pause", **msgspec.structs.asdict(pause))

    async def end_pause(self, kind: PauseKind, name: str) -> bool:
        return await self._wins("end_pause", kind=kind, name=name)

    async def list_pauses(self) -> list[PauseView]:
        (rows,) = await self._read("list_pauses")
        return [
            PauseView(**{**dict(row), "kind": PauseKind(row["kind"]), "paused_at": moment(row["paused_at"])})
            for row in rows
        ]
