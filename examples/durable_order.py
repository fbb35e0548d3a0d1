"""An order as a durable function: charge, book, wait for the warehouse, ship in parallel.

    reltask enqueue "durable_order:create_app()" fulfil '{"order": {"number": 42, "parcels": 3}}'
    reltask worker "durable_order:create_app()"
    reltask jobs signal JOB packed '{"by": "ada"}' --app "durable_order:create_app()"

Kill the worker wherever you like: another one goes on after the last recorded step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reltask import App, Context, Signal, TaskTransaction, current_step


@dataclass
class Order:
    """What was ordered."""

    number: int
    parcels: int


@dataclass
class Packed:
    """What the warehouse says."""

    by: str


packed = Signal("packed", Packed)
charges: dict[str, int] = {}
"""Stands for a payment provider that knows idempotency keys."""


async def charge(order: Order) -> str:
    """A body may start again after a crash: the provider charges once per key."""
    key = current_step().idempotency_key
    charges.setdefault(key, order.number)
    return key


async def book(tx: TaskTransaction, order: Order, receipt: str) -> int:
    """The row and the step's record commit together: exactly once."""
    await tx.execute("create table if not exists bookings (number integer, receipt text)")
    await tx.execute("insert into bookings values (:number, :receipt)", number=order.number, receipt=receipt)
    return order.parcels


def create_app(url: str = "sqlite:///orders.db", **options: Any) -> App:
    """The app with its two tasks."""
    app = App(url, **options)

    @app.task
    async def label(order: int, parcel: int) -> str:
        return f"{order}-{parcel}"

    @app.task
    async def fulfil(ctx: Context, order: Order) -> list[str]:
        receipt = await ctx.using(attempts=3, backoff="5s").step("charge", charge, order)
        parcels = await ctx.transact("book", book, order, receipt)
        note = await ctx.wait_for(packed, timeout="7d")  # suspended: no place, no lock, no connection
        ctx.logger.info("packed by %s", note.by)
        return await ctx.run_all("labels", [label.call(order.number, parcel) for parcel in range(parcels)])

    return app
