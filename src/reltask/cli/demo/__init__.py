"""`reltask demo`: three real worker processes on one SQLite file; one is killed and one is stopped.

processes.py   the worker processes     scenario.py   what is done to them, and when
app.py         the task that they run   ledger.py     what the database says afterwards
                                        view.py       the output
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import click
import msgspec

from reltask.app import App
from reltask.cli.demo.ledger import Summary
from reltask.cli.demo.processes import WorkerProcesses
from reltask.cli.demo.scenario import LONGEST, Scenario
from reltask.cli.demo.view import open_view, summary_lines
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json, print_line


@click.command(name="demo")
@click.option("--seconds", type=click.FloatRange(0, LONGEST), default=25, show_default=True, help="Approximate length.")
@click.option("--json", "as_json", is_flag=True, help="Write the summary as JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def command(*, seconds: float, as_json: bool) -> int:
    """Run three workers on one SQLite file; kill one in the middle of a task, stop another.

    The demo ends by itself with a summary from the ledger. The exit status is 0 only if no slot was lost or completed
    twice, and if both interruptions hit a running task.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl+C: stop the workers before this process ends
    folder = Path(tempfile.mkdtemp(prefix="reltask-demo-"))
    summary = _run(folder, seconds)
    if as_json:
        print_json({**msgspec.structs.asdict(summary), "ok": summary.is_good})
    else:
        for line in summary_lines(summary):
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
