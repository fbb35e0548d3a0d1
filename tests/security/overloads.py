"""Overloads in schema `public` for every operator and function that reltask's statements use.

PostgreSQL looks for operators and functions in `pg_catalog` first, but takes an exact match from any schema of the
path before an inexact one: if `public` has `bigint * interval`, the statement `x::bigint * interval '1 s'` runs the
code of its owner, because `pg_catalog` has only `double precision * interval`. A polymorphic function such as
`unnest(anyarray)` loses to `public.unnest(uuid[])` in the same way.

`plant` makes one overload for every combination of argument types that `pg_catalog` does not have exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import asyncpg

from reltask.stores.statement import tokens

TYPES = [
    *("smallint", "integer", "bigint", "numeric", "double precision", "boolean", "text", "character varying", "name"),
    *("uuid", "json", "timestamptz", "timestamp", "interval", "oid", "regclass"),
    *("text[]", "uuid[]", "bigint[]", "integer[]", "numeric[]", "double precision[]", "boolean[]"),
]
"""What the columns, parameters and literals of the statements are."""
OPERATORS = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
CALLS = re.compile(r"\b([a-z_]+) ?\(")

PREPARE = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'attacker') then create role attacker; end if;
end $$;
grant create, usage on schema public to attacker;
create schema probe;
set check_function_bodies = off;
set search_path = pg_catalog;
"""
OPERATOR_TRAPS = """
do $plant$
declare
    symbol text; lefts text; rights text; result text; body text := 'overload';
begin
    foreach lefts in array array[{types}] loop
        foreach rights in array array[{types}] loop
            foreach symbol in array array[{symbols}] loop
                continue when exists (
                    select from pg_operator where oprnamespace = 'pg_catalog'::regnamespace and oprname = symbol
                    and oprleft = lefts::regtype and oprright = rights::regtype
                );
                result := case when symbol ~ '^[<>=!]+$' and symbol not in ('<<', '>>') then 'boolean'
                               when symbol in ('||', '->>') then 'text'
                               when rights = 'interval' or symbol = '*' and rights = 'numeric' then rights
                               else lefts end;
                execute format(
                    'create or replace function public.%I(%s, %s) returns %s language plpgsql as %L',
                    'trap_' || result, lefts, rights, result, '{body}'
                );
                execute format(
                    'create operator public.%s (function = public.%I, leftarg = %s, rightarg = %s)',
                    symbol, 'trap_' || result, lefts, rights
                );
            end loop;
        end loop;
    end loop;
end
$plant$
"""
FUNCTION_TRAPS = """
do $plant$
declare
    called record; arguments text; result text;
begin
    for called in
        select distinct proname::text as name, case when provariadic <> 0 then 2 else pronargs end as many,
               proretset as many_rows
        from pg_proc
        where pronamespace = 'pg_catalog'::regnamespace and proname = any (array[{names}])
    loop
        for arguments in
            select one from unnest(array[{types}]) as one where called.many = 1
            union all
            select one || ', ' || two from unnest(array[{types}]) as one, unnest(array[{types}]) as two
            where called.many = 2
            union all
            select one || ', ' || two || ', ' || three
            from unnest(array[{few}]) as one, unnest(array[{few}]) as two, unnest(array[{few}]) as three
            where called.many = 3
        loop
            continue when to_regprocedure(format('pg_catalog.%I(%s)', called.name, arguments)) is not null;
            result := case when arguments like '%[]' and called.name <> 'cardinality' then replace(arguments, '[]', '')
                           else 'text' end;
            result := case when result like '%,%' then 'text' else result end;
            execute format(
                'create or replace function public.%I(%s) returns %s %s language plpgsql as %L',
                called.name, arguments, case when called.many_rows then 'setof' else '' end, result, '{body}'
            );
        end loop;
        commit;  -- a transaction cannot hold the locks of all
    end loop;
end
$plant$
"""
FEW = ["integer", "bigint", "boolean", "text", "name", "timestamptz", "interval", "oid"]
BODY = "begin raise exception ''an overload was called''; end"

GIVE_AWAY = """
do $give$
declare
    planted record;
begin
    for planted in select oid::regprocedure as name from pg_proc where pronamespace = 'public'::regnamespace loop
        execute format('alter function %s owner to attacker', planted.name);
        commit;
    end loop;
end
$give$
"""
COUNT = """
select (select count(*) from pg_operator where oprnamespace = 'public'::regnamespace)
     + (select count(*) from pg_proc where pronamespace = 'public'::regnamespace)
"""
USED = """
select distinct coalesce(
    (select oid::regoperator::text from pg_operator where oid = refobjid and refclassid = 'pg_operator'::regclass),
    (select oid::regprocedure::text from pg_proc where oid = refobjid and refclassid = 'pg_proc'::regclass)
) as overload
from pg_depend
where (
    refclassid = 'pg_operator'::regclass
    and refobjid in (select oid from pg_operator where oprnamespace = 'public'::regnamespace)
    or refclassid = 'pg_proc'::regclass
    and refobjid in (select oid from pg_proc where pronamespace = 'public'::regnamespace)
)
and classid <> 'pg_operator'::regclass
and ($1::text = '' or objid = (select oid from pg_proc where proname = $1::text))
order by 1
"""
"""The overloads that anything depends on: a constraint, an index, a policy, the body of a function."""


def words(sql: str) -> tuple[set[str], set[str]]:
    """The operators of a text, and what it may call."""
    code = "".join(text if kind in ("other", "cast", "dollar") else " x " for kind, text in tokens(sql))
    code = code.replace("::", " ")
    return set(OPERATORS.findall(code)), set(CALLS.findall(code))


def quoted(texts: Iterator[str] | list[str] | set[str]) -> str:
    return ", ".join(f"'{text}'" for text in sorted(texts))


async def plant(owner: asyncpg.Connection, texts: list[str]) -> int:
    """Make the overloads for these texts, owned by another user, and say how many there are."""
    symbols: set[str] = {"=", "<>", "<", "<=", ">", ">="}  # also written as between, in, any, distinct, nullif
    names: set[str] = set()
    for text in texts:
        used, called = words(text)
        symbols |= used
        names |= called
    fill = {"types": quoted(TYPES), "few": quoted(FEW), "names": quoted(names), "body": BODY}
    await owner.execute(PREPARE)
    known = {row[0] for row in await owner.fetch("select distinct oprname::text from pg_operator")}
    await owner.execute(OPERATOR_TRAPS.format(**fill, symbols=quoted(symbols & known)))
    await owner.execute(FUNCTION_TRAPS.format(**fill))
    await owner.execute(GIVE_AWAY)
    planted = await owner.fetchval(COUNT)
    await owner.execute("reset search_path")
    return int(planted)


async def used(owner: asyncpg.Connection, function: str = "") -> list[str]:
    """The overloads that anything depends on, or this function of the schema `probe`."""
    await owner.execute("set search_path = pg_catalog")
    rows = await owner.fetch(USED, function)
    await owner.execute("reset search_path")
    return [row[0] for row in rows]
