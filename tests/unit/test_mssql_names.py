"""Names that SQL Server's columns cannot hold.

A server would truncate them silently, so they are not sent.
"""

from __future__ import annotations

from uuid import uuid4

import pytest
from msgspec.structs import replace

from reltask.errors import ArgumentsError
from reltask.model.job import NewJob
from reltask.stores.mssql import values
from reltask.stores.mssql.store import MssqlStore
from tests.store.store_harness import seen

JOB = NewJob(id=uuid4(), task="greet", args="{}")


@pytest.mark.parametrize(("name", "most"), [("task", 256), ("key", 256), ("queue", 128)])
async def test_name_that_is_too_long_is_refused(name: str, most: int) -> None:
    """Two long keys with the same start would become one key.

    The error gives the length, and does not quote it.
    """
    store = MssqlStore("mssql://sa:p@127.0.0.1:1/d")
    secret = replace(JOB, **{name: "s" * (most + 1)})
    for verb in (store.enqueue_jobs([JOB, secret]), store.declare_job(secret, seen=seen())):
        with pytest.raises(ArgumentsError, match=rf"{name} has {most + 1} characters.*at most {most}\b") as caught:
            await verb
        assert caught.value.remedy
        assert "sss" not in str(caught.value)


@pytest.mark.parametrize(("key", "fits"), [("k" * 256, True), ("😀" * 128, True), ("😀" * 129, False)])
def test_length_is_counted_as_the_column_does(key: str, fits: bool) -> None:
    """nvarchar(256) holds 256 units of UTF-16, and some characters take two."""
    job = replace(JOB, key=key)
    if fits:
        assert values.new_job(job)["key"] == key
    else:
        with pytest.raises(ArgumentsError):
            values.new_job(job)
