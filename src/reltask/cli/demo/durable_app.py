"""The app of `reltask demo durable`: orders that are charged, booked, approved, labelled and shipped."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from reltask.app import App
from reltask.cli.demo.app import SETTINGS, exit_with_demo
from reltask.producer.signal import Signal
from reltask.producer.transaction import TaskTransaction
from reltask.worker.context import Context

approved = Signal("approved", str)
CALLS = "DEMO_CALLS"
"""Names the file in which each call of a function leaves a line, whatever becomes of it."""
LABELS = 2


async def _work(what: str) -> None:
    """Leave a line, and take long enough to be killed meanwhile."""
    _leave_line(what)
    await asyncio.sleep(0.15)


def _leave_line(what: str) -> None:
    with Path(os.environ[CALLS]).open("a", encoding="utf-8") as calls:
        calls.write(f"{what}\n")


async def charge(number: int) -> str:
    """An effect elsewhere: it may be called again after a kill, with the same key."""
    await _work(f"charge {number}")
    return f"receipt {number}"


async def book(tx: TaskTransaction, number: int, receipt: str) -> None:
    """An effect in the database: its row and the step's record are one commit."""
    await _work(f"book {number}")
    await tx.execute("insert into effects values (:what)", what=f"book {number} {receipt}")


async def ship(tx: TaskTransaction, number: int, labels: list[str]) -> None:
    """The last effect."""
    await _work(f"ship {number}")
    await tx.execute("insert into effects values (:what)", what=f"ship {number} {' '.join(labels)}")


def create_app() -> App:
    """The app of each worker, and of the demo itself."""
    app = App(settings={name: value for name, value in SETTINGS.items() if not name.startswith("sample.")})

    @app.task
    async def label(number: int, parcel: int) -> str:
        await _work(f"label {number}.{parcel}")
        return f"{number}.{parcel}"

    @app.task(max_attempts=20)
    async def order(ctx: Context, number: int) -> str:
        receipt = await ctx.step("charge", charge, number)
        await ctx.transact("book", book, number, receipt)
        await ctx.sleep("cool off", "2s")
        by = await ctx.wait_for(approved)
        labels = await ctx.run_all("labels", [label.call(number, parcel) for parcel in range(LABELS)])
        await ctx.transact("ship", ship, number, labels)
        return by

    return app


def create_worker_app() -> App:
    """The same in a worker process, which ends with the demo."""
    threading.Thread(target=exit_with_demo, daemon=True).start()
    return create_app()
