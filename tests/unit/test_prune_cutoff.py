"""The cutoff of the ledger by number: pruning goes on whatever becomes of the query."""

from __future__ import annotations

from reltask.errors import TransientError
from reltask.stores.prune_cutoff import EVERY, PruneCutoff


class Ledger:
    """Answers, or times out."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answer: int | None = None

    async def ask(self) -> int | None:
        if self.answer is None:
            raise TransientError("read_surplus: the database did not answer in time.")
        return self.answer


async def test_a_query_that_times_out_does_not_stop_pruning() -> None:
    """Rows are pruned by their age, then by the last answer; the query is repeated later."""
    ledger = Ledger()
    cutoff = PruneCutoff[int](lambda: ledger.now)
    assert await cutoff.before(100, ledger.ask) is None
    ledger.now, ledger.answer = EVERY, 7
    assert await cutoff.before(100, ledger.ask) == 7
    ledger.now, ledger.answer = 2 * EVERY, None
    assert await cutoff.before(100, ledger.ask) == 7


async def test_an_answer_for_another_number_is_forgotten() -> None:
    """The answer for 100 rows would remove too much where 1000 are kept."""
    ledger = Ledger()
    cutoff = PruneCutoff[int](lambda: ledger.now)
    ledger.answer = 7
    assert await cutoff.before(100, ledger.ask) == 7
    ledger.answer = None
    assert await cutoff.before(1_000, ledger.ask) is None
