"""What the store makes of every error, wherever the server says it, to the real driver.

login        Entra, firewall, no such database                     tests/azure/test_login.py
first batch  the connection is there, the database is not any more
caught       a batch has caught the error and rolled back          by its number
uncaught     the batch has ended in the middle                     by the server's words
commit       the last statement of a task's transaction
silence      no answer: the driver sends an attention
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import mssql_python
import pytest

from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    ConflictError,
    PermanentError,
    ReltaskError,
    SchemaError,
    TransientError,
)
from reltask.model.lease import Term
from reltask.stores.mssql import error_numbers as numbers
from reltask.stores.mssql.connections import MssqlOptions
from reltask.stores.mssql.store import MssqlStore
from tests.azure.conftest import needs_libraries
from tests.azure.gateway import Gateway, Refusal, caught, done, failed, gateway, prepared

pytestmark = [pytest.mark.slow, needs_libraries]

Replies = Callable[[bytes], bytes | None]
SET_UP = "SET LOCK_TIMEOUT".encode("utf-16-le")
"""The first batch of every connection."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway without a server behind it."""
    mssql_python.pooling(enabled=False)
    with gateway(tmp_path) as opened:
        opened.replies = lambda _: done()
        yield opened


def after_set_up(answer: bytes | None) -> Replies:
    """Every request but the first of a connection is answered so."""
    return lambda body: done() if SET_UP in body else answer


def outcome(server: Gateway, work: Callable[[MssqlStore], Coroutine[Any, Any, Any]], *, timeout: float = 10) -> Any:
    """What a verb raises, or returns."""

    async def attempt() -> Any:
        url = f"mssql://sa:geheim@127.0.0.1:{server.port}/TaskExecutionDb"
        store = MssqlStore(url, options=MssqlOptions(connect_timeout=10, command_timeout=timeout))
        try:
            return await work(store)
        except ReltaskError as error:
            return error
        finally:
            await store.close()

    return asyncio.run(attempt())


async def write(store: MssqlStore) -> object:
    return await store.release_lease(Term("a", 1))


async def read(store: MssqlStore) -> object:
    return await store.list_leases()


async def commit(store: MssqlStore) -> None:
    async with store.transaction(timeout=timedelta(seconds=10)):
        pass


def kind_of(number: int) -> type[ReltaskError]:
    """What a caught error of this number is, for a write."""
    for known, kind in (
        (numbers.MISSING, SchemaError),
        (numbers.LOST, AmbiguousError),
        (numbers.TRANSIENT, TransientError),
        (numbers.REFUSED, AccessRefused),
        (numbers.CONFLICT, ConflictError),
    ):
        if number in known:
            return kind
    return PermanentError


KNOWN = sorted(numbers.LOST | numbers.TRANSIENT | numbers.REFUSED | numbers.CONFLICT | numbers.MISSING)


def test_every_caught_number(server: Gateway) -> None:
    """A batch that has caught an error says its number, and the number decides; an unknown one is permanent."""

    async def each(store: MssqlStore) -> dict[int, type]:
        found = {}
        for number in [*KNOWN, 8134, 50_000]:
            server.replies = after_set_up(caught(number, "Whatever.") + done())
            try:
                await write(store)
            except ReltaskError as error:
                found[number] = type(error)
        return found

    assert outcome(server, each) == {number: kind_of(number) for number in [*KNOWN, 8134, 50_000]}


@pytest.mark.parametrize("number", [1205, 1222, 2627])
def test_error_that_was_caught_is_not_hidden_by_the_next(server: Gateway, number: int) -> None:
    """CATCH rolls back a transaction that was begun before the batch: then 266 follows."""
    mismatch = Refusal(266, "Transaction count after EXECUTE indicates a mismatching number of BEGIN.", severity=16)
    server.replies = after_set_up(caught(number, "Whatever.") + failed(mismatch))
    assert type(outcome(server, write)) is kind_of(number)


@pytest.mark.parametrize("number", [208, 229, 701, 1205, 1222, 3906, 8134])
def test_error_that_was_caught_after_the_commit(server: Gateway, number: int) -> None:
    """The batch has claimed, and failed while it read when to ask again: the claims must not be given up."""
    server.replies = after_set_up(caught(number, "Whatever.", committed=True) + done())
    assert type(outcome(server, write)) is AmbiguousError


Ambiguous, Transient, Permanent, Refused, Schema = (
    AmbiguousError, TransientError, PermanentError, AccessRefused, SchemaError,
)  # fmt: skip
UNCAUGHT = [
    (596, "Cannot continue the execution because the session is in the kill state.", Ambiguous, Transient),
    (0, "Unspecified error. Connection may have been terminated by the server.", Ambiguous, Transient),
    (40549, "Session is terminated because you have a long-running transaction.", Ambiguous, Transient),
    (40550, "The session has been terminated because it has acquired too many locks.", Ambiguous, Transient),
    (40551, "The session has been terminated because of excessive TEMPDB usage.", Ambiguous, Transient),
    (40552, "The session has been terminated because of excessive transaction log space usage.", Ambiguous, Transient),
    (40553, "The session has been terminated because of excessive memory usage.", Ambiguous, Transient),
    (40197, "The service has encountered an error processing your request.", Ambiguous, Transient),
    (40613, "Database 'd' on server 's' is not currently available. Please retry.", Transient, Transient),
    (40501, "The service is currently busy. Retry the request after 10 seconds.", Transient, Transient),
    (10928, "Resource ID : 1. The request limit for the database is 30 and has been reached.", Transient, Transient),
    (10936, "Resource ID : 1. The limit for the elastic pool is 30 and has been reached.", Transient, Transient),
    (3906, 'Failed to update database "d" because the database is read-only.', Transient, Transient),
    (1205, "Transaction (Process ID 52) was deadlocked on lock resources.", Transient, Transient),
    (208, "Invalid object name 'reltask.Jobs'.", Schema, Schema),
    (229, "The UPDATE permission was denied on the object 'Jobs'.", Refused, Refused),
    (8622, "Query processor could not produce a query plan because of the hints.", Ambiguous, Permanent),
    (50_000, "Words that no list knows.", Ambiguous, Permanent),
]  # fmt: skip


@pytest.mark.parametrize(("number", "text", "writing", "reading"), UNCAUGHT, ids=[str(row[:2]) for row in UNCAUGHT])
def test_error_that_was_not_caught(
    server: Gateway, number: int, text: str, writing: type[ReltaskError], reading: type[ReltaskError]
) -> None:
    """A write is ambiguous, unless the words are known to mean that nothing was applied."""
    server.replies = after_set_up(failed(Refusal(number, text, severity=16)))
    assert type(outcome(server, write)) is writing
    assert type(outcome(server, read)) is reading


@pytest.mark.parametrize(("number", "text", "reading"), [(*row[:2], row[3]) for row in UNCAUGHT])
def test_error_of_the_first_batch(server: Gateway, number: int, text: str, reading: type[ReltaskError]) -> None:
    """The login has succeeded, and the database is gone: the statement was not sent, so a write is not ambiguous."""
    server.replies = lambda _: failed(Refusal(number, text, severity=16))
    assert type(outcome(server, write)) is reading


@pytest.mark.parametrize("answer", [None, b""], ids=["cut", "silent"])
def test_first_batch_that_is_not_answered(server: Gateway, answer: bytes | None) -> None:
    """The same: nothing of the statement was sent."""
    server.replies = lambda _: answer
    assert type(outcome(server, write, timeout=1)) is TransientError


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (3902, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION."),
        (3930, "The current transaction cannot be committed and cannot support operations that write to the log file."),
        (3998, "Uncommittable transaction is detected at the end of the batch. The transaction is rolled back."),
    ],
)
def test_commit_of_a_transaction_that_the_server_has_ended(server: Gateway, number: int, text: str) -> None:
    """Nothing was applied: the run is repeated."""
    word = "COMMIT TRANSACTION".encode("utf-16-le")
    server.replies = lambda body: failed(Refusal(number, text, severity=16)) if word in body else done()
    assert type(outcome(server, commit)) is TransientError


def test_commit_whose_answer_is_lost(server: Gateway) -> None:
    """The connection is cut after COMMIT was sent."""
    word = "COMMIT TRANSACTION".encode("utf-16-le")
    server.replies = lambda body: None if word in body else done()
    assert type(outcome(server, commit)) is AmbiguousError


@pytest.mark.parametrize(("work", "kind"), [(write, AmbiguousError), (read, TransientError)])
def test_connection_that_is_cut(server: Gateway, work: Any, kind: type[ReltaskError]) -> None:
    """The answer is lost."""
    server.replies = after_set_up(None)
    assert type(outcome(server, work)) is kind


@pytest.mark.parametrize(("work", "kind"), [(write, AmbiguousError), (read, TransientError)])
def test_server_that_falls_silent(server: Gateway, work: Any, kind: type[ReltaskError]) -> None:
    """The driver sends an attention when the statement's time is up; the message says that nothing answered."""
    server.replies = after_set_up(b"")
    error = outcome(server, work, timeout=1)
    assert type(error) is kind
    assert "in time" in str(error)


@pytest.mark.parametrize("number", sorted(numbers.STALE))
def test_connection_to_a_database_that_is_not_the_one_is_closed(server: Gateway, number: int) -> None:
    """After a failover the old primary answers as a read-only replica: the next statement connects again."""

    async def twice(store: MssqlStore) -> int:
        server.replies = after_set_up(caught(number, "Whatever.") + done())
        for _ in range(2):
            with pytest.raises(ReltaskError):
                await write(store)
        return len(server.logins)

    assert outcome(server, twice) == 2


def test_prepared_statement_is_not_dropped_after_each_call(server: Gateway) -> None:
    """A call is one request: none follows it that drops what it has prepared."""
    asked: list[bytes] = []

    def note(body: bytes) -> bytes:
        asked.append(body)
        return done() if SET_UP in body else prepared(7)

    async def thrice(store: MssqlStore) -> int:
        for _ in range(3):
            await write(store)
        return len(asked)

    server.replies = note
    assert outcome(server, thrice) == 1 + 3, "the set-up, and one request for each call"


def test_session_is_reset_before_each_transaction_of_a_task(server: Gateway) -> None:
    """What a task has set, `USE` among it, ends with it; statements of reltask's own need no reset."""

    async def twice(store: MssqlStore) -> None:
        await write(store)
        for _ in range(2):
            await commit(store)

    outcome(server, twice)
    assert len(server.logins) == 2, "one connection for statements, and one that both transactions have used"
    assert len(server.resets) == 2
