"""`reltask demo`: three real processes on one file, and what becomes of their tasks when they die.

crew.py   the processes          story.py   what happens to them
app.py    what they run          ledger.py  what the database says about it
                                 view.py    how it looks
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import click

from reltask.app import App
from reltask.cli.demo.crew import Crew
from reltask.cli.demo.ledger import Summary
from reltask.cli.demo.story import LONGEST, Story
from reltask.cli.demo.view import open_view, summary_lines
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json


@click.command(name="demo")
@click.option("--seconds", type=click.FloatRange(0, LONGEST), default=25, show_default=True, help="How long, about.")
@click.option("--json", "as_json", is_flag=True, help="Write the summary as JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(*, seconds: float, as_json: bool) -> int:
    """Three workers on one SQLite file: one is killed in the middle of a task, one is stopped.

    Ends by itself, with a summary from the ledger. The exit status is 0 only if no slot was lost or completed twice,
    and both interruptions really hit a running task.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end as at Ctrl+C: with the workers, not before them
    folder = Path(tempfile.mkdtemp(prefix="reltask-demo-"))
    summary = _perform(folder, seconds)
    if as_json:
        print_json({**_as_dict(summary), "ok": summary.is_good})
    else:
        click.echo("\n".join(summary_lines(summary)))
    if summary.is_good:
        shutil.rmtree(folder, ignore_errors=True)
        return EXIT_OK
    click.echo(f"The database and the workers' logs are in {folder}", err=True)
    return EXIT_ERROR


def _perform(folder: Path, seconds: float) -> Summary:
    url = f"sqlite:///{folder / 'demo.db'}"
    app = App(url)
    try:
        with Crew(folder, url) as crew, open_view() as view:
            return Story(app, crew, view, seconds=seconds).play()
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        app.close()


def _as_dict(summary: Summary) -> dict[str, object]:
    return {name: getattr(summary, name) for name in summary.__struct_fields__}
