"""Statements of an attacker who has the password of one role.

They are generated: every column of every table with the extreme values of its type, inserted, updated, upserted,
deleted and read; every kind of lock, and every statement about a table that is not its rows; and what needs no table.
Whether a statement is allowed is not asked here. The tests look at what is left afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import asyncpg

_TIMES = [
    *("'infinity'", "'-infinity'", "'4714-11-24 00:00:00+00 BC'", "'294276-12-31'", "'1970-01-01'", "'8999-12-31'"),
    *(
        "now()",
        "now() - interval '30 minutes'",
        "now() - interval '2 hours'",
        "now() - interval '2 years'",
        "now() + interval '2 years'",
    ),
]
EXTREMES: dict[str, list[str]] = {
    "uuid": [
        "gen_random_uuid()",
        "'00000000-0000-0000-0000-000000000000'",
        "(select job_id from reltask.runs limit 1)",
    ],
    "text": [
        *(
            "''",
            "'work'",
            "'tick'",
            "'default'",
            "'99.0'",
            "'succeeded'",
            '\'{"every":"1us"}\'',
            "'reltask:maintenance'",
        ),
        *("repeat('x', 1900)", "repeat('x', 100000)", r"E'\x1b]52;c;aGk=\x07'", r"E'a\nb'", r"U&'\202e\2066'"),
    ],
    "json": [
        *(
            "'{}'",
            "'null'",
            "'[]'",
            "'[[]]'",
            "'1e400'",
            "'\"\\ud800\"'",
            "'{\"token\": 1}'",
            '\'{"token": "a", "b": 2}\'',
        ),
        *("to_json(repeat('x', 2000000))", "(repeat('[', 3000) || repeat(']', 3000))::json"),
    ],
    "smallint": ["-32768", "-1", "0", "9", "10", "32767"],
    "integer": ["-2147483648", "-1", "0", "1", "2147483647"],
    "bigint": ["-9223372036854775808", "-1", "0", "1", "500", "3155760000000", "9223372036854775807"],
    "timestamp with time zone": _TIMES,
    "boolean": ["true", "false"],
    "text[]": [
        *("'{}'", "'{smtp}'", "'{smtp,smtp}'", "'{smtp,null}'", "'{smtp,all}'", "'{{smtp,all}}'"),
        *("array_fill('smtp'::text, array[1000])", "array['smtp', repeat('x', 100000)]"),
    ],
    "double precision": ["'NaN'", "'Infinity'", "'-Infinity'", "0", "1e308"],
}
ROWS: dict[str, dict[str, str]] = {
    "meta": {"only_row": "true", "schema_version": "1", "oldest_version": "99"},
    "jobs": {"id": "gen_random_uuid()", "task": "'work'", "next_run_time": "now()", "limit_key": "'smtp'"},
    "runs": {
        "job_id": "gen_random_uuid()",
        "fence": "1",
        "slot_no": "1",
        "task": "'work'",
        "queue": "'default'",
        "attempt": "1",
        "nominal_time": "now()",
        "due_at": "now()",
        "finished_at": "now()",
        "outcome": "'failed'",
    },
    "workers": {
        "id": "gen_random_uuid()::text",
        "host": "'h'",
        "pid": "1",
        "version": "'1'",
        "queues": "'[]'",
        "tasks": "'[]'",
        "concurrency": "1",
        "started_at": "now()",
        "heartbeat_at": "now()",
        "alive_until": "now()",
    },
    "leases": {
        "name": "gen_random_uuid()::text",
        "term": "1",
        "acquired_at": "now()",
        "heartbeat_at": "now()",
        "ttl_ms": "10000",
        "expires_at": "now()",
    },
    "lease_waiters": {"name": "'reltask:maintenance'", "holder": "gen_random_uuid()::text", "waiting_until": "now()"},
    "metrics": {
        "minute": "date_trunc('minute', now())",
        "task": "'work'",
        "succeeded": "1",
        "failed": "1",
        "seconds": "1",
        "seconds_most": "1",
        "late": "1",
        "late_most": "1",
    },
    "steps": {
        "job_id": "gen_random_uuid()",
        "slot_no": "1",
        "name": "'step'",
        "kind": "'step'",
        "state": "'waiting'",
        "fingerprint": "''",
        "attempt": "1",
        "fence": "1",
        "started_at": "now()",
        "recorded_at": "now()",
        "pending": "0",
    },
    "signals": {
        "job_id": "(select id from reltask.jobs limit 1)",
        "slot_no": "1",
        "name": "'go'",
        "id": "gen_random_uuid()::text",
        "value": "'1'",
        "sent_at": "now()",
    },
    "child_ends": {
        "parent_id": "(select id from reltask.jobs limit 1)",
        "slot_no": "1",
        "step": "'children'",
        "nth": "0",
        "job_id": "gen_random_uuid()",
        "outcome": "'succeeded'",
        "ended_at": "now()",
    },
    "marks": {
        "queue": "'default'",
        "task": "'send'",
        "at": "now()",
        "kind": "'limit'",
        "name": "'healthy'",
    },
    "keys": {
        "task": "gen_random_uuid()::text",
        "key": "'k'",
        "job_id": "gen_random_uuid()",
        "until_start": "false",
    },
    "pauses": {
        "kind": "'task'",
        "name": "gen_random_uuid()::text",
        "paused_by": "'another operator'",
        "paused_at": "now()",
    },
    "actions": {
        "id": "gen_random_uuid()",
        "at": "now()",
        "actor": "'another operator'",
        "action": "'retry'",
        "target": "'all'",
        "jobs": "1",
    },
    "limits": {"name": "'healthy'", "running": "1000", "declaration": "'a'", "changed_at": "now()"},
    "limit_keys": {"key": "'healthy'", "name": "'healthy'", "running": "-1000", "tokens": "0", "refilled_at": "now()"},
}
"""A sound row of each table."""
LOCKS = [
    *("access share", "row share", "row exclusive", "share update exclusive", "share", "share row exclusive"),
    *("exclusive", "access exclusive"),
]
ABOUT_TABLES = [
    "truncate {0}",
    "drop table {0} cascade",
    "alter table {0} disable row level security",
    "alter table {0} no force row level security",
    "alter table {0} disable trigger all",
    "alter table {0} owner to current_user",
    "alter table {0} add column mine text",
    "alter table {0} rename to mine",
    "alter table {0} set schema public",
    "alter table {0} set (autovacuum_enabled = off)",
    "create index on {0} ((1))",
    "create policy mine on {0} using (true)",
    "create rule mine as on insert to {0} do instead nothing",
    "create trigger mine before insert on {0} execute function reltask.refuse_ended_jobs()",
    "grant all on {0} to public",
    "comment on table {0} is 'mine'",
    "cluster {0}",
    "reindex table {0}",
    "analyze {0}",
    "vacuum full {0}",
    "create table reltask.mine (like {0})",
    "create temp table {1} as table {0}",
    "create view pg_temp.{1}_seen as select * from {0}",
    "explain analyze delete from {0}",
    "with gone as (delete from {0} returning 1) select count(*) from gone",
    "merge into {0} using (select 1) as one on true when matched then delete",
    "copy {0} from program 'true'",
    "select * from {0} tablesample bernoulli (100) for update",
    "declare held cursor with hold for select * from {0}",
    "select pg_relation_filepath('{0}'), lo_create(0)",
]
ELSEWHERE = [
    "set role reltask_migrate",
    "set session authorization postgres",
    "set session_replication_role = replica",
    "set row_security = off",
    "alter role current_user superuser",
    "grant reltask_migrate to current_user",
    "create role mine",
    "create schema mine",
    "create extension dblink",
    "drop schema reltask cascade",
    "drop function reltask.refuse_ended_jobs() cascade",
    "create or replace function reltask.refuse_ended_jobs() returns trigger language sql as 'select null'",
    "create function public.now() returns timestamptz language sql as 'select null::timestamptz'",
    "create operator public.= (function = pg_catalog.uuid_eq, leftarg = uuid, rightarg = uuid)",
    "create function pg_temp.statement_timestamp() returns timestamptz language sql as 'select null::timestamptz'",
    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()",
    "select pg_cancel_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()",
    "select pg_advisory_unlock_all()",
    "select pg_advisory_lock(hashtextextended('reltask reltask:maintenance', 0))",
    "select pg_advisory_lock(hashtextextended('reltask.leases reltask:maintenance', 0))",
    "select pg_advisory_lock(hashtextextended('reltask.migrate', 0))",
    "select pg_reload_conf(), pg_rotate_logfile()",
    "alter system set max_connections = 1",
    "checkpoint",
    "listen reltask",
    "do $$ begin perform pg_sleep(0.05); end $$",
    "prepare mine as select 1",
    "discard temp",
]
PAYLOADS = [
    *("''", "'alive'", "'0'", "'-1'", "'221845392000000000'", "repeat('9', 7000)", "'1e400'", "'nan'"),
    *(r"E'\x1b[2J'", r"U&'\202e'", "'reltask:maintenance'", "'{}'"),
]
"""Of notifications, which every user may send."""
COLUMNS = """
select relation.relname::text, attribute.attname::text, format_type(attribute.atttypid, null)
from pg_attribute as attribute
join pg_class as relation on relation.oid = attribute.attrelid
where relation.relnamespace = 'reltask'::regnamespace and relation.relkind = 'r'
  and attribute.attnum > 0 and not attribute.attisdropped
order by relation.relname, attribute.attnum
"""


class Column(NamedTuple):
    table: str
    name: str
    type: str


async def columns(owner: asyncpg.Connection) -> list[Column]:
    """Every column of every table."""
    return [Column(*row) for row in await owner.fetch(COLUMNS)]


def statements(known: list[Column]) -> Iterator[str]:
    """Every statement."""
    for column in known:
        for value in [*EXTREMES[column.type], "null"]:
            yield from _with_value(column, value)
        for lock in ("update", "no key update", "share", "key share"):
            yield f"select {column.name} from reltask.{column.table} for {lock} skip locked"
        yield f"select max({column.name}::text) from reltask.{column.table}"
    for table in ROWS:
        yield from (f"begin; lock table reltask.{table} in {mode} mode nowait; commit" for mode in LOCKS)
        yield from (statement.format(f"reltask.{table}", table) for statement in ABOUT_TABLES)
    yield from ELSEWHERE
    for channel in ("reltask", "reltask_leases"):
        yield from (f"select pg_notify('{channel}', {payload}) from generate_series(1, 20)" for payload in PAYLOADS)


def _with_value(column: Column, value: str) -> Iterator[str]:
    table, name = f"reltask.{column.table}", column.name
    row = ROWS[column.table] | {name: value}
    insert = f"insert into {table} ({', '.join(row)}) values ({', '.join(row.values())})"
    yield insert
    yield f"{insert} on conflict do nothing"
    yield f"{insert} on conflict ({_KEYS[column.table]}) do update set {name} = excluded.{name}"
    yield f"update {table} set {name} = {value}"
    yield f"delete from {table} where {name}::text is not distinct from ({value})::text"


_KEYS = {
    "meta": "only_row",
    "jobs": "id",
    "runs": "job_id, fence",
    "workers": "id",
    "leases": "name",
    "lease_waiters": "name, holder",
    "metrics": "minute, task",
    "steps": "job_id, slot_no, name",
    "signals": "job_id, slot_no, name, id",
    "child_ends": "parent_id, slot_no, step, nth",
    "marks": "queue, task, at, seq",
    "pauses": "kind, name",
    "keys": "task, key",
    "actions": "id",
    "limits": "name",
    "limit_keys": "key",
}


class Attack:
    """One session of the attacker."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.sent = 0
        self.accepted: list[str] = []

    async def send(self, statement: str) -> None:
        """Send one statement. An attacker does not mind errors."""
        self.sent += 1
        try:
            await self._connection.execute(statement)
        except asyncpg.PostgresError:
            if self._connection.is_in_transaction():
                await self._connection.execute("rollback")
        else:
            self.accepted.append(statement)
