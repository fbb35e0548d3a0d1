"""Limits at run time: how much of each is in use, and changing them until their declaration in code changes."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from reltask.errors import DeclarationError, UsageError
from reltask.model.limit import Limit, LimitKeyView, LimitRule, LimitView
from reltask.producer.client import Client
from reltask.producer.portal import Operation
from reltask.stores.store import Store


class LimitOperations:
    """Reading and changing limits: each as a coroutine and, with the suffix `_sync`, for synchronous code."""

    _client: Client

    def limits(self) -> Coroutine[Any, Any, list[LimitView]]:
        """The limits of this database, and how much of each is in use."""
        return self._client.run(lambda store: store.list_limits(), name="limits")

    def limits_sync(self) -> list[LimitView]:
        """`limits` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_limits(), name="limits")

    def limit_keys(self, name: str, *, limit: int = 100) -> Coroutine[Any, Any, list[LimitKeyView]]:
        """The keys of a limit, those with the most waiting jobs first; UsageError if there is no such limit."""
        return self._client.run(_keys(name, limit), name="limit_keys")

    def limit_keys_sync(self, name: str, *, limit: int = 100) -> list[LimitKeyView]:
        """`limit_keys` for synchronous code."""
        return self._client.run_sync(_keys(name, limit), name="limit_keys")

    def change_limit(
        self,
        name: str,
        *,
        running: int | UnsetType | None = UNSET,
        rate: str | UnsetType | None = UNSET,
        burst: int | UnsetType = UNSET,
    ) -> Coroutine[Any, Any, None]:
        """Change a limit for all workers at once. None: any number.

        Runs are not stopped: a lowered limit counts when enough of them have ended. The change stays until the
        declaration in code changes. UsageError if no worker has declared such a limit.
        """
        return self._client.run(_change(name, running, rate, burst), name="change_limit")

    def change_limit_sync(
        self,
        name: str,
        *,
        running: int | UnsetType | None = UNSET,
        rate: str | UnsetType | None = UNSET,
        burst: int | UnsetType = UNSET,
    ) -> None:
        """`change_limit` for synchronous code."""
        self._client.run_sync(_change(name, running, rate, burst), name="change_limit")


def _keys(name: str, limit: int) -> Operation[list[LimitKeyView]]:
    async def read(store: Store) -> list[LimitKeyView]:
        found = await store.list_limit_keys(name, limit=limit)
        if not found:  # jobs may wait for a limit that no worker has declared yet
            _known(name, await store.read_limits())
        return found

    return read


def _known(name: str, rules: list[LimitRule]) -> LimitRule:
    declared = {rule.name: rule for rule in rules}
    if name not in declared:
        raise UsageError(
            f"There is no limit {name!r}.", remedy=f"Declared limits: {', '.join(sorted(declared)) or 'none'}."
        )
    return declared[name]


def _change(
    name: str, running: int | UnsetType | None, rate: str | UnsetType | None, burst: int | UnsetType
) -> Operation[None]:
    if (running, rate, burst) == (UNSET, UNSET, UNSET):
        raise UsageError("Nothing is to be changed.", remedy="Give running, rate or burst.")

    async def change(store: Store) -> None:
        before = _known(name, await store.read_limits())
        if not await store.write_limit(changed(before, running, rate, burst), seen=before.declaration):
            raise UsageError(
                f"Another session has just changed limit {name!r}, or is changing it.",
                remedy="Look at it, and try again.",
            )
        await store.signal()

    return change


def changed(
    rule: LimitRule,
    running: int | UnsetType | None = UNSET,
    rate: str | UnsetType | None = UNSET,
    burst: int | UnsetType = UNSET,
) -> LimitRule:
    """The rule with other numbers, checked as a declaration is; but it may admit nothing, or anything."""
    new_running = rule.running if running is UNSET else running
    new_rate = (None if rule.rate is None else str(rule.rate)) if rate is UNSET else rate
    new_burst: int | None = (rule.burst if rate is UNSET else None) if burst is UNSET else burst
    stops_all = new_running == 0 and new_running is not False
    try:  # 0 stops all that has this limit; Limit itself refuses it
        least = 1 if stops_all or (new_running is None and new_rate is None) else new_running
        given = Limit(rule.name, running=least, rate=new_rate, burst=new_burst)
    except DeclarationError as error:
        raise UsageError(str(error)) from None
    return replace(rule, running=new_running, rate=given.rate, burst=given.burst)
