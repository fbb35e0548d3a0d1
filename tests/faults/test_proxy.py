"""The proxy does what its modes say: a fault without effect would prove nothing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

import asyncpg
import pytest

from reltask.stores.statement import read_sql
from tests.faults import tds
from tests.faults.proxy import Proxy
from tests.faults.wire import ClientSide, text_of
from tests.postgres_server import PostgresServer

NOT_YET = 0.2
"""Seconds after which a withheld answer has surely not arrived."""


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


async def connected(proxy: Proxy, server: PostgresServer) -> asyncpg.Connection:
    return await asyncpg.connect(proxy.url(server.url()), timeout=5)


async def test_refused_and_reset_connections_end_at_once(proxy: Proxy, postgres_server: PostgresServer) -> None:
    """Open connections are closed and new ones refused; afterwards both work."""
    for inflict, lift in ((proxy.refuse, proxy.listen_again), (proxy.reset, proxy.heal)):
        connection = await connected(proxy, postgres_server)
        inflict()
        with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
            await connection.fetchval("select 1")
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            await connected(proxy, postgres_server)
        lift()
        connection = await connected(proxy, postgres_server)
        assert await connection.fetchval("select 1") == 1
        await connection.close()


@pytest.mark.slow
async def test_what_a_black_hole_holds_arrives_when_it_closes(proxy: Proxy, postgres_server: PostgresServer) -> None:
    """No error is reported meanwhile, in one direction or in both."""
    connection = await connected(proxy, postgres_server)
    for inflict in (
        proxy.black_hole,
        lambda: proxy.half_open(requests=True),
        lambda: proxy.half_open(requests=False),
        lambda: proxy.slow(0.3),
    ):
        inflict()
        asked = asyncio.ensure_future(connection.fetchval("select 1"))
        done, _ = await asyncio.wait([asked], timeout=NOT_YET)
        assert not done
        proxy.heal()
        assert await asked == 1
    await connection.close()


async def test_half_open_lets_requests_through(proxy: Proxy, postgres_server: PostgresServer) -> None:
    """The server has run the request, although the answer does not arrive."""
    connection = await connected(proxy, postgres_server)
    outside = await asyncpg.connect(postgres_server.url())
    await outside.execute("create table if not exists heard (n int); truncate heard")
    proxy.half_open(requests=True)
    asked = asyncio.ensure_future(connection.execute("insert into heard values (1)"))
    while not await outside.fetchval("select count(*) from heard"):
        pass
    assert not asked.done()
    proxy.heal()
    await asked
    await connection.close()
    await outside.close()


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_statements_are_recognised_however_their_bytes_arrive(piece: int) -> None:
    """A Bind is recognised by the text of its prepared statement; a simple Query by its own."""
    text = text_of("read_now")
    sent = (
        struct.pack(">ii", 8, 80877103)
        + struct.pack(">ii", 8, 196608)
        + message(b"P", b"s1\0" + text.encode() + b"\0\0\0")
        + message(b"B", b"\0s1\0\0\0\0\0")
        + message(b"Q", b"COMMIT;\0")
    )
    side = ClientSide()
    found = [one for at in range(0, len(sent), piece) for one in side.feed(sent[at : at + piece])]
    assert b"".join(one.raw for one in found) == sent
    assert [one.kind for one in found if one.runs("read_now")] == [b"B"]
    assert [one.kind for one in found if one.runs("COMMIT")] == [b"Q"]


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", 4 + len(body)) + body


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_statements_of_sql_server_are_recognised(piece: int) -> None:
    """Batches and calls are recognised by the comment at their start, even over several packets."""
    claim, commit = (read_sql("mssql", verb).encode("utf-16-le") for verb in ("claim_jobs", "commit_transaction"))
    halves = packet(0x03, b"head" + claim[:501], last=False) + packet(0x03, claim[501:])
    sent = packet(0x12, b"hello") + bytes([0x17, 3, 3, 0, 4]) + b"tls!" + halves + packet(0x01, b"head" + commit)
    side = tds.ClientSide()
    found = [one for at in range(0, len(sent), piece) for one in side.feed(sent[at : at + piece])]
    assert b"".join(one.raw for one in found) == sent
    assert [one.raw for one in found if one.runs("claim_jobs")] == [halves]
    assert [one.kind for one in found if one.runs("COMMIT")] == [0x01]
    assert [one.ends_request for one in found] == [False, False, True, True]


def test_answers_of_sql_server_end_with_their_last_packet() -> None:
    """Until then the statement has not ended."""
    server = tds.ServerSide()
    first, last = packet(0x04, b"rows", last=False), packet(0x04, b"more")
    assert not server.is_ready(first + last[:-1])
    assert server.is_ready(last[-1:])


def packet(kind: int, body: bytes, *, last: bool = True) -> bytes:
    return struct.pack(">BBHHBB", kind, int(last), 8 + len(body), 0, 1, 0) + body
