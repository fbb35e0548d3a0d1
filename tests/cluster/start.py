"""A worker process: `python -m tests.cluster.start [--once]`."""

from __future__ import annotations

import sys

from reltask.runner import run_worker
from tests.cluster.workload import app

if __name__ == "__main__":
    sys.exit(run_worker(app, once="--once" in sys.argv))
