"""Payloads behind a codec, on every database."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from cryptography.fernet import Fernet, MultiFernet

from reltask import Again, App, Context, Job, Limit, Retry, RunView, Signal, TaskTransaction, UnreadablePayload
from tests import mssql_server
from tests.mssql_server import databases
from tests.worker.worker_harness import working

pytestmark = pytest.mark.slow
SECRET = "4111-1111-1111-1111"
HASH_KEY = b"of these sixteen bytes or more"
OLD, NEW, FOREIGN = (Fernet.generate_key() for _ in range(3))
card: Signal[str] = Signal("card", str)
session: ContextVar[str] = ContextVar("session")


class Encryption:
    hash_key = HASH_KEY

    def __init__(self, *keys: bytes) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def encode(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def decode(self, data: bytes) -> bytes:
        return self._fernet.decrypt(data)


@pytest.fixture(params=databases())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/reltask.db"
    name = {"postgres": "postgres_url", "mssql": "mssql_url"}[request.param]
    found: str = request.getfixturevalue(name)
    return found


def shop(url: str, *keys: bytes) -> App:
    """An app that puts the secret into every payload there is."""
    app = App(
        url,
        codec=Encryption(*keys) if keys else None,
        contextvars=[session],
        settings={"worker.poll": "200ms", "maintenance.coordination": "off"},
    )

    @app.task
    async def echo(text: str) -> str:
        return text

    @app.task
    def in_thread(text: str) -> str:
        return text

    @app.task
    async def order(ctx: Context, number: str) -> str:
        await ctx.progress({"card": number})
        same = await ctx.step("same", same_text, number)
        child = await ctx.run("child", echo.call(number))
        await ctx.start("another", echo.call(number))
        sent = await ctx.wait_for(card)
        assert same == child == sent == number == ctx.headers["card"] == session.get()
        async with ctx.transaction() as tx:
            await echo.enqueue(number)
            tx.result = number
        return "not stored"

    @app.task
    async def page(ctx: Context, number: str, nth: int) -> str:
        if ctx.attempt == 1 and nth == 2:
            raise Retry("once more", delay="0s")
        if nth < 3:
            raise Again(page.call(number, nth + 1))
        return number

    @app.task(max_attempts=1)
    async def fail(number: str) -> None:
        raise ValueError(len(number))

    @app.task
    async def wait(ctx: Context, number: str) -> None:
        await ctx.step("same", same_text, number)
        await ctx.transact("in a transaction", same_text_in, number)
        await ctx.progress({"card": number})
        await ctx.wait_for("never", name=f"never for {len(number)}")

    @app.task(unique=True, unique_for="1h", limit=Limit("card", running=1, by="number"))
    async def pay(number: str) -> str:
        return number

    app.schedule(echo.using(headers={"card": SECRET}).call(SECRET), key="nightly", every="1d")
    return app


async def same_text(text: str) -> str:
    return text


async def same_text_in(_: TaskTransaction, text: str) -> str:
    return text


async def in_state(job: Job[Any], state: str) -> None:
    """Look until the job is in this state: no event tells a producer."""
    while (view := await job.view()) is None or view.state != state:  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.02)


async def first_runs(app: App, job_id: UUID) -> list[RunView]:
    """Look until a run of the job has ended."""
    while not (runs := await app.job(job_id).runs()):  # noqa: ASYNC110 - no event tells a producer
        await asyncio.sleep(0.02)
    return runs


async def everything(url: str) -> list[str]:
    """Every value in every column of every table, as text."""
    if url.startswith("postgresql"):
        connection = await asyncpg.connect(url)
        try:
            tables = await connection.fetch("select tablename from pg_tables where schemaname = 'reltask'")
            rows = [await connection.fetch(f"select one::text from reltask.{table[0]} as one") for table in tables]
            return [row[0] for found in rows for row in found]
        finally:
            await connection.close()
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            names = [row[0] for row in file.execute("select name from sqlite_master where type = 'table'")]
            return _texts(row for name in names for row in file.execute(f"select * from {name}"))
    with contextlib.closing(mssql_server.open_connection(url)) as server:
        cursor = server.cursor()
        cursor.execute("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'reltask'")
        found = []
        for (name,) in cursor.fetchall():
            cursor.execute(f"SELECT * FROM reltask.{name}")
            found += cursor.fetchall()
        return _texts(found)


def _texts(rows: Iterable[Any]) -> list[str]:
    return [str(value) for row in rows for value in row]


async def test_no_payload_can_be_read_in_any_table(url: str) -> None:
    """Arguments, headers, context variables, results, progress, steps, signals, children, and keys that are made from
    arguments; and all are read again.
    """
    app = shop(url, OLD)
    echo, order, page, fail, wait = (app.get_task(name) for name in ("echo", "order", "page", "fail", "wait"))
    async with working(app):
        token = session.set(SECRET)
        job = await order.using(headers={"card": SECRET}).enqueue(SECRET)
        session.reset(token)
        await job.signal(card, SECRET)
        many = await app.enqueue_many(echo.call(SECRET) for _ in range(120))
        paged, failed, waiting = await page.enqueue(SECRET, 1), await fail.enqueue(SECRET), await wait.enqueue(SECRET)
        thread, paid = await app.get_task("in_thread").enqueue(SECRET), await app.get_task("pay").enqueue(SECRET)
        later = await echo.using(delay="1d", key="later").enqueue(SECRET)
        await waiting.signal("other", SECRET)
        for one in (job, many[119], paged, thread, paid):
            assert await one.result(timeout="60s") == SECRET
        await in_state(failed, "dead")
        await in_state(waiting, "suspended")
        assert [step.value for step in await waiting.steps() if step.value] == [f'"{SECRET}"'] * 2
        suspended = await waiting.view()
        assert suspended is not None
        assert suspended.progress == f'{{"card":"{SECRET}"}}'
        assert [signal.value for signal in await waiting.signals()] == [f'"{SECRET}"']
        assert {run.result for run in await job.runs() if run.outcome == "succeeded"} == {f'"{SECRET}"'}
        assert (await later.arguments(), await many[0].arguments()) == ({"text": SECRET}, {"text": SECRET})
        again = await many[0].run_again()
        assert await again.result(timeout="60s") == SECRET
    texts = await everything(url)
    assert len(texts) > 120
    assert not [text for text in texts if SECRET in text or SECRET.encode().hex() in text]
    assert any("~reltask" in text for text in texts)


async def test_a_plain_app_can_be_read(url: str) -> None:
    """The test above can fail: without a codec the secret is there."""
    app = shop(url)
    async with working(app):
        await app.get_task("echo").using(delay="1d").enqueue(SECRET)
    assert any(SECRET in text for text in await everything(url))


async def test_keys_are_rotated_without_downtime(url: str) -> None:
    """While old and new processes run side by side, each reads what the others have written."""
    plain, old, both, turned, new = (shop(url, *keys) for keys in ((), (OLD,), (OLD, NEW), (NEW, OLD), (NEW,)))
    first = await plain.get_task("echo").enqueue("before the codec")
    second = await old.get_task("echo").enqueue("old key")
    third = await turned.get_task("echo").enqueue("new key")
    async with working(both):
        for job, text in ((first, "before the codec"), (second, "old key"), (third, "new key")):
            assert await both.get_task("echo").job(id=job.id).result(timeout="60s") == text
    fourth = await turned.get_task("echo").enqueue("only the new one")
    async with working(new):
        assert await new.get_task("echo").job(id=fourth.id).result(timeout="60s") == "only the new one"
        with pytest.raises(UnreadablePayload):
            await new.get_task("echo").job(id=second.id).result(timeout="60s")
    for app in (plain, old, turned):
        await asyncio.to_thread(app.close)


async def test_a_job_of_another_key_fails_alone(url: str) -> None:
    """The run fails and is tried again; jobs claimed with it run. The error says nothing of the payload."""
    foreign, app = shop(url, FOREIGN), shop(url, OLD)
    bad = await foreign.get_task("echo").enqueue(SECRET)
    good = [await app.get_task("echo").enqueue(str(nth)) for nth in range(5)]
    async with working(app):
        assert [await job.result(timeout="60s") for job in good] == [str(nth) for nth in range(5)]
        runs = await first_runs(app, bad.id)
        view = await app.job(bad.id).view()
        assert view is not None
        assert (runs[0].outcome, view.attempt) == ("failed", 1)
        assert "App(codec=…) the key" in (runs[0].error or "")
        assert await app.job(bad.id).arguments() == {"(encoded)": "***"}
    await asyncio.to_thread(foreign.close)


async def test_an_app_without_the_codec_says_so(url: str) -> None:
    """It does not take an encoded payload for arguments that do not fit, nor for a result."""
    coded, plain = shop(url, OLD), shop(url)
    job = await coded.get_task("echo").enqueue(SECRET)
    async with working(plain):
        runs = await first_runs(plain, job.id)
        assert "UnreadablePayload" in (runs[0].error or "")
    done = await coded.get_task("echo").enqueue(SECRET)
    async with working(coded):
        await done.result(timeout="60s")
    with pytest.raises(UnreadablePayload):
        await plain.job(done.id).result(timeout="60s")
    await asyncio.to_thread(plain.close)


async def test_equal_arguments_have_equal_keys_under_any_key(tmp_path: Path) -> None:
    """The hash of a key is by the codec's `hash_key`, which stays."""
    apps = [shop(f"sqlite:///{tmp_path}/reltask.db", *keys) for keys in ((OLD,), (NEW, OLD))]
    hashes = set()
    for app in apps:
        call = app.get_task("echo").call(SECRET)
        hashes.add(app._enqueuer.access.keys.of_arguments(call.task.arguments, call.args))
    assert len(hashes) == 1
