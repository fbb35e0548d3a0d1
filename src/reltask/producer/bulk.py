"""Many jobs at once: in batches, of which the server inserts one while the next is prepared."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from reltask.errors import AmbiguousError, ReltaskError

B = TypeVar("B")
T = TypeVar("T")


def batches(given: Sequence[B], size: int) -> Iterator[Sequence[B]]:
    """Parts of this size; the last may be smaller."""
    return (given[start : start + size] for start in range(0, len(given), size))


async def overlapping(
    work: Callable[[B], Coroutine[Any, Any, T]], given: Iterable[B], *, at_once: int
) -> tuple[list[T], list[BaseException]]:
    """Work on all of these, `at_once` at a time; return the results and the errors.

    After a failure no further one is begun. All that were begun have ended.
    """
    waiting, done = deque(enumerate(given)), {}

    async def one_by_one() -> None:
        while waiting:
            nth, one = waiting.popleft()
            try:
                done[nth] = await work(one)
            except BaseException:
                waiting.clear()
                raise

    ended = await asyncio.gather(*(one_by_one() for _ in range(at_once)), return_exceptions=True)
    return [done[nth] for nth in sorted(done)], [error for error in ended if error is not None]


def raise_first(errors: list[BaseException], *, inserted: int, wanted: int) -> NoReturn:
    """Raise the error of a failed bulk insert: AmbiguousError if some jobs are inserted, or may be.

    The error of one batch alone would say that all jobs may be enqueued again.
    """
    lost = [error for error in errors if isinstance(error, AmbiguousError)]
    first = (lost or errors)[0]
    if not isinstance(first, ReltaskError) or not (inserted or lost):
        raise first
    raise AmbiguousError(
        f"{inserted} of {wanted} jobs are certainly inserted. {first}",
        remedy="Check which exist before you enqueue them again. With connection= it is all or nothing.",
    ) from first
