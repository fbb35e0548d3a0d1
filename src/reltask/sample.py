"""The sample task: run `reltask worker reltask.sample:app` in any number of terminals.

It pretends to work for `sample.task_duration`, and logs which worker runs it. Replace its body with your own. The seed
scripts in `database/` create its job by hand; a worker then adopts that job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from reltask.app import App
from reltask.model.duration import Duration
from reltask.worker.context import Context

TASK = "SampleTask"
"""Its name in the database, which the seed scripts know."""
STEPS = 4
"""How often it reports its progress."""


def create_app(*, every: Duration = "10m", settings: Mapping[str, object] | None = None) -> App:
    """An app with the sample task; the database comes from the settings."""
    app = App(settings=settings)

    @app.task(name=TASK, every=every)
    async def sample_task(ctx: Context) -> None:
        duration = app.settings.sample.task_duration.total_seconds()
        ctx.logger.info("%s starts: slot of %s on %s", TASK, f"{ctx.nominal_time:%Y-%m-%d %H:%M:%S} UTC", ctx.worker)
        for step in range(1, STEPS + 1):
            await asyncio.sleep(duration / STEPS)
            await ctx.progress(f"{step} of {STEPS}")
            ctx.logger.info("%s: %d of %d done", TASK, step, STEPS)
        ctx.logger.info("%s finished after %.1f s on %s", TASK, duration, ctx.worker)

    return app


app = create_app()
