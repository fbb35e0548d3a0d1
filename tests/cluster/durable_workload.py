"""Durable functions of twenty steps each: steps, transactions, sleeps, signals and children."""

from __future__ import annotations

import os
from pathlib import Path

from reltask import App, Context, Signal, TaskTransaction

CALLS = "RELTEST_CALLS"
"""Names the file in which every call of a step's function leaves a line."""
approve = Signal("approve", int)
DOCUMENTS = 6
TRANSACTIONS = 8
EFFECTS_PER_FUNCTION = TRANSACTIONS + 2
"""Its own, and one by each of its two children."""


def note(line: str) -> None:
    with Path(os.environ[CALLS]).open("a", encoding="utf-8") as calls:
        calls.write(f"{line}\n")


async def document(number: int, nth: int) -> int:
    note(f"document {number} {nth}")
    return nth


async def effect(tx: TaskTransaction, number: int, name: str) -> str:
    await tx.execute("insert into effects (what) values (:what)", what=f"{number} {name}")
    return name


def make_app(url: str | None = None) -> App:
    """The app of the test and of its workers."""
    app = App(url)

    @app.task(max_attempts=50)
    async def part(ctx: Context, number: int, nth: int) -> int:
        await ctx.transact("effect", effect, number, f"part {nth}")
        return nth

    @app.task(max_attempts=50)
    async def long(ctx: Context, number: int) -> int:
        for nth in range(DOCUMENTS):
            await ctx.step(f"document:{nth}", document, number, nth)
        for nth in range(TRANSACTIONS // 2):
            await ctx.transact(f"effect:{nth}", effect, number, f"early {nth}")
        await ctx.sleep("rest", "1500ms")
        answer = await ctx.wait_for(approve)
        parts = await ctx.run_all("parts", [part.call(number, nth) for nth in range(2)])
        await ctx.sleep("rest again", "1200ms")
        again = await ctx.wait_for(approve, name="approve again", timeout="1h")
        for nth in range(TRANSACTIONS // 2):
            await ctx.transact(f"late:{nth}", effect, number, f"late {nth}")
        return answer + again + sum(parts)

    return app


app = make_app()
