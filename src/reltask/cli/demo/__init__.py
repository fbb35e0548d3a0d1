"""`reltask demo`: three real worker processes on one SQLite file; one is killed and one is stopped.

processes.py   the worker processes     scenario.py   what is done to them, and when
app.py         the task that they run   ledger.py     what the database says afterwards
                                        view.py       the output

`reltask demo durable`: durable_app.py is what its workers run, durable.py what is done to them.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import click
import msgspec

from reltask.app import App
from reltask.cli.demo.durable import DurableSummary, lines, play
from reltask.cli.demo.ledger import Summary
from reltask.cli.demo.processes import WorkerProcesses
from reltask.cli.demo.scenario import LONGEST, Scenario
from reltask.cli.demo.view import open_view, summary_lines
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json, print_line


@click.command(name="demo")
@click.argument("what", type=click.Choice(["workers", "durable"]), default="workers")
@click.option("--seconds", type=click.FloatRange(0, LONGEST), default=25, show_default=True, help="Approximate length.")
@click.option("--json", "as_json", is_flag=True, help="Write the summary as JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(*, what: str, seconds: float, as_json: bool) -> int:
    """Run three workers on one SQLite file; kill one in the middle of a task, stop another.

    The demo ends by itself with a summary from the ledger. The exit status is 0 only if no slot was lost or completed
    twice, and if both interruptions hit a running task.

    `reltask demo durable` runs six orders as durable functions, and kills their workers between and inside the steps.
    The exit status is 0 only if every order ends, with each effect once.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: stop the workers before this process ends
    folder = Path(tempfile.mkdtemp(prefix="reltask-demo-"))
    summary: Summary | DurableSummary
    if what == "durable":
        summary = play(folder, (lambda _: None) if as_json else print_line)
        words = list(lines(summary))
    else:
        summary = _run(folder, seconds)
        words = list(summary_lines(summary))
    if as_json:
        print_json({**msgspec.structs.asdict(summary), "ok": summary.is_good})
    else:
        for line in words:
            print_line(line)
    if summary.is_good:
        shutil.rmtree(folder, ignore_errors=True)
        return EXIT_OK
    print_line(f"See the database and the workers' logs in {folder}", err=True)
    return EXIT_ERROR


def _run(folder: Path, seconds: float) -> Summary:
    url = f"sqlite:///{folder / 'demo.db'}"
    app = App(url)
    try:
        with WorkerProcesses(folder, url) as processes, open_view() as view:
            return Scenario(app, processes, view, seconds=seconds).run()
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        app.close()
