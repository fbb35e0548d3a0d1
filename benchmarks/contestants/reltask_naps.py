"""reltask: each job is a durable function that sleeps once."""

from __future__ import annotations

from benchmarks.contestants.process import main
from benchmarks.contestants.reltask_steps import Reltask

if __name__ == "__main__":
    main(Reltask(naps=True))
