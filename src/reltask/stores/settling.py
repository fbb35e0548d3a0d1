"""A batch of outcomes that a constraint has refused is settled row by row, so that one bad row harms no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from reltask.errors import AmbiguousError, ConflictError, ReltaskError

A = TypeVar("A")
T = TypeVar("T")


async def row_by_row(
    batch: Sequence[T], settle: Callable[[Sequence[T]], Awaitable[list[A]]], *, ends: bool = True
) -> list[A]:
    """Settle the batch; if a constraint refuses it, each of its rows alone.

    A row that is alone and refused is missing from the answer, as the end of a slot that has ended. Of rows that end
    nothing (`ends`) none can be refused for that reason: there it is an error.
    """
    try:
        return await settle(batch) if batch else []
    except ConflictError:
        if len(batch) == 1 and not ends:
            raise
        return await one_by_one(batch, settle)


async def one_by_one(batch: Sequence[T], settle: Callable[[Sequence[T]], Awaitable[list[A]]]) -> list[A]:
    """Settle each row in a transaction of its own; a row that is refused even so is not in the answer.

    Once one row is written, a later error becomes an AmbiguousError: by itself it would say that none is.
    """
    settled: list[A] = []
    for one in batch if len(batch) > 1 else ():  # a row that was alone is refused already
        try:
            settled += await settle([one])
        except ConflictError:
            continue
        except ReltaskError as error:
            if not settled:
                raise
            raise AmbiguousError(f"{len(settled)} of {len(batch)} outcomes were written. {error}") from error
    return settled
