"""An approval that times out and escalates: wait for a person, remind, then ask another one.

reltask enqueue "durable_approval:create_app()" approve '{"expense": 1200}'
reltask jobs signal JOB decision '{"ok": true, "by": "ada"}' --app "durable_approval:create_app()"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reltask import App, Cancel, Context, Signal, WaitTimeout


@dataclass
class Decision:
    """What a person answers."""

    ok: bool
    by: str


decision = Signal("decision", Decision)
mails: list[str] = []


async def mail(to: str, text: str) -> None:
    """Stands for your mail provider."""
    mails.append(f"{to}: {text}")


def create_app(url: str = "sqlite:///approvals.db", **options: Any) -> App:
    """The app with its task."""
    app = App(url, **options)

    @app.task
    async def approve(ctx: Context, expense: int) -> str:
        await ctx.step("ask lead", mail, "lead", f"please decide on {expense}")
        try:
            answer = await ctx.wait_for(decision, timeout="2d", name="lead decides")
        except WaitTimeout:
            await ctx.step("ask manager", mail, "manager", f"no decision on {expense}")
            answer = await ctx.wait_for(decision, timeout="5d", name="manager decides")
        if not answer.ok:
            raise Cancel(f"refused by {answer.by}")
        return answer.by

    return app
