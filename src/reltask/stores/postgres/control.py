"""Pauses on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from reltask.model.control import Pause, PauseKind, PauseView


class ControlVerbs(ABC):
    """What people decide while workers run."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    async def add_pause(self, pause: Pause) -> bool:
        return bool(await self._ask("add_pause", **msgspec.structs.asdict(pause)))

    async def end_pause(self, kind: PauseKind, name: str) -> bool:
        return bool(await self._ask("end_pause", kind=kind, name=name))

    async def list_pauses(self) -> list[PauseView]:
        return [PauseView(**{**row, "kind": PauseKind(row["kind"])}) for row in await self._ask("list_pauses")]
