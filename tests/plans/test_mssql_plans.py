"""Plans and locks of SQL Server's statements, from the parser's trees: see tsql.py."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from tests import mssql_storm
from tests.plans import tsql
from tests.plans.tsql import READS_ALL, ROOT, WALKED, Access, Lock

pytestmark = pytest.mark.skipif(
    not tsql.PARSER.exists(), reason="Microsoft's parser is not installed: run make check-tsql"
)

HOT = {"Jobs", "Runs", "Leases"}
ONE_JOB = {"cancel_job", "discard_job", "forget_steps", "read_waits"}
"""They compare the key with a variable, not with the rows of another table: there is nothing to join otherwise."""


def verbs() -> list[str]:
    folder = ROOT / "src/reltask/stores/mssql/sql"
    return sorted(path.stem for path in folder.glob("*.sql"))


def hot(verb: str) -> list[Access]:
    """The accesses of a verb to the tables that every worker uses."""
    return [access for access in tsql.accesses(tsql.verbs()[verb]) if access.table in HOT and access.target != "insert"]


def named(access: Access) -> tsql.Index:
    assert access.path is not None, f"{access.table} without INDEX (…)"
    index = tsql.indexes()[access.path]
    assert index.table == access.table
    return index


def seeks_one_row(access: Access, index: tsql.Index) -> bool:
    """Whether the conditions fix the whole key of a unique index: then looking up the rest costs one row."""
    fixed = {column for column, how in access.conditions if how == "="}
    return index.unique and not index.filtered and fixed >= set(index.key)


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb not in READS_ALL])
def test_every_access_names_an_index_that_covers_its_conditions(verb: str) -> None:
    """A guess of the optimizer must not turn a seek into a scan, which would lock or wait for every row."""
    for access in hot(verb):
        index = named(access)
        compared = {column for column, _ in access.conditions}
        covered = index.columns | set(tsql.clustered(access.table).key)
        assert index.clustered or seeks_one_row(access, index) or compared <= covered, (access, compared - covered)


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb not in READS_ALL])
def test_every_access_is_a_seek(verb: str) -> None:
    """The first column of the key is compared, and the plan is forced: by FORCESEEK, or as a loop in this order."""
    for access in hot(verb):
        index = named(access)
        if access.path == WALKED.get(verb) and not access.target and "ForceSeek" not in access.hints:
            continue
        assert index.key[0] in {column for column, _ in access.conditions}, access
        alone = (access.target or verb in ONE_JOB) and seeks_one_row(access, index)
        assert "ForceSeek" in access.hints or access.forced or alone, access


@pytest.mark.parametrize(
    "verb", ["claim_jobs", "claim_limited", "enqueue_unique", "fold_marks", "forget_steps", "prune_keys"]
)
def test_marks_and_keys_are_sought(verb: str) -> None:
    """Small tables that many sessions write: a scan would wait for, or lock, the keys of others, and deadlock."""
    for access in tsql.accesses(tsql.verbs()[verb]):
        if access.table in {"Marks", "LimitKeys", "Keys"} and access.target != "insert":
            assert access.path or seeks_one_row(access, tsql.clustered(access.table)), access


@pytest.mark.parametrize("verb", ["page_jobs", "read_overview"])
def test_screens_name_the_indexes_of_waiting_jobs(verb: str) -> None:
    """Lists and counts of waiting jobs walk the lanes, with and without a limit, and never the table."""
    waiting = [access for access in hot(verb) if {("LockedBy", "IS NULL"), ("DueAt", "<>")} <= access.conditions]
    assert {access.path for access in waiting} == {"IX_Jobs_Polling", "IX_Jobs_LimitedDue"}


@pytest.mark.parametrize("verb", verbs())
def test_conditions_repeat_the_filter_of_a_filtered_index(verb: str) -> None:
    """Otherwise the index cannot be used, and with INDEX (…) the statement fails: 8622."""
    for access in tsql.accesses(tsql.verbs()[verb]):
        if access.path is not None:
            missing = tsql.indexes()[access.path].filtered - access.conditions
            assert not missing, (access.path, missing)


@pytest.mark.parametrize("verb", verbs())
def test_targets_have_no_forceseek(verb: str) -> None:
    """SQL Server refuses FORCESEEK on the target of a write, and index hints outside of FROM: 1069."""
    for access in tsql.accesses(tsql.verbs()[verb]):
        assert not (access.target and "ForceSeek" in access.hints), access


@pytest.mark.parametrize("verb", verbs())
def test_inserts_lock_rows(verb: str) -> None:
    """A page lock could not be skipped."""
    for access in tsql.accesses(tsql.verbs()[verb]):
        assert access.target != "insert" or "Rowlock" in access.hints, access


@pytest.mark.parametrize("verb", verbs())
def test_output_goes_into_a_table_variable(verb: str) -> None:
    """Jobs has a trigger, for limits: SQL Server refuses OUTPUT without INTO on such a table (334)."""
    kinds = ("UpdateSpecification", "InsertSpecification", "DeleteSpecification")
    assert not [write["at"] for write in tsql.of_kind(tsql.verbs()[verb], *kinds) if "OutputClause" in write]


@pytest.mark.parametrize("verb", ["claim_jobs", "reclaim_jobs", "heartbeat_jobs"])
def test_workers_never_wait_for_a_row(verb: str) -> None:
    """Each first access to a key skips locked ones, and with READPAST comes ROWLOCK and READCOMMITTEDLOCK."""
    accesses = [access for access in hot(verb) if access.table == "Jobs"]
    first = [access for access in accesses if access.skips]
    assert first
    for access in accesses:
        if access.skips:
            assert {"Rowlock", "ReadCommittedLock"} <= access.hints
    assert not [lock for lock in tsql.locks(tsql.verbs()[verb])[:2] if lock.waits]


def test_claim_reads_no_lane_while_it_holds_locks() -> None:
    """A probe after a lane would see rows that rivals have locked, and repeat: S is compatible with U."""
    claim = [access for access in hot("claim_jobs") if access.path == "IX_Jobs_Polling"]
    held = [access for access in claim if "UpdLock" in access.hints]
    assert len(held) == 1
    assert all(access.at <= held[0].at for access in claim)


def test_heads_of_lanes_are_single_rows() -> None:
    """A poll reads the first row of a lane, also of isolated jobs, and not all of them."""
    claim = tsql.verbs()["claim_jobs"]
    for query in tsql.of_kind(claim, "QuerySpecification"):
        ours = [table for table in query.get("FromClause", {}).get("TableReferences", []) if tsql._is_table(table)]
        if any(tsql._alias(table) == "job" for table in ours):
            assert query["TopRowFilter"]["Expression"]["Expression"]["Value"] == "1"


@pytest.mark.parametrize("index", ["IX_Jobs_Polling", "IX_Jobs_Expiring", "IX_Jobs_Held", "UX_Jobs_Name"])
def test_filtered_indexes_include_the_columns_of_their_filter(index: str) -> None:
    """A column of the filter outside of key and INCLUDE costs a lookup per probe."""
    found = tsql.indexes()[index]
    assert {column for column, _ in found.filtered} <= {*found.key, *found.included}


def test_every_filtered_index_includes_the_columns_of_its_filter() -> None:
    """The same, for those that are added later."""
    for index in tsql.indexes().values():
        assert {column for column, _ in index.filtered} <= {*index.key, *index.included}, index.name


def test_no_key_is_wider_than_sql_server_takes() -> None:
    """900 bytes for a clustered index, 1700 for others: beyond that CREATE only warns, and the long rows fail later."""
    wide = {
        index.name: tsql.width(index)
        for index in tsql.indexes().values()
        if tsql.width(index) > (900 if index.clustered else 1700)
    }
    assert tsql.width(tsql.indexes()["UX_Jobs_NameAndKey"]) == 2 * (256 + 256), "the rule sees widths"
    assert not wide


def test_filters_are_of_the_few_kinds_that_sql_server_takes() -> None:
    """Columns compared with constants, none of them computed: CREATE INDEX would fail (10609). Babelfish takes more."""
    for index in tsql.indexes().values():
        assert not {column for column, _ in index.filtered} & set(tsql.computed()), index.name
        assert {how for _, how in index.filtered} <= {"IS NULL", "IS NOT NULL", "=", "IN"}, index.name


def test_the_order_of_locks_is_documented() -> None:
    """docs/sqlserver.md says who locks which keys in which order: python -m tests.plans.tsql prints it."""
    page = (ROOT / "docs/sqlserver.md").read_text(encoding="utf-8")
    written = [line for line in page.partition("\n## Locks\n")[2].partition("\n## ")[0].splitlines() if "| `" in line]
    assert written == tsql.table()


@cache
def edges(verb: str) -> frozenset[tuple[Lock, Lock]]:
    """What a verb holds while it waits for something else: one pair for each."""
    order = tsql.locks(tsql.verbs()[verb])
    return frozenset(
        (held._replace(waits=True), wanted)
        for held, wanted in itertools.combinations(order, 2)
        if wanted.waits and held.table == wanted.table
    )


def cycles(one: str, other: str) -> frozenset[tuple[Lock, Lock]]:
    """Keys that one locks in this order, and the other in the opposite one, and both wait."""
    back = {(wanted._replace(waits=True), held) for held, wanted in edges(other)}
    return edges(one) & back


def test_no_two_verbs_wait_for_each_other() -> None:
    """Two verbs that lock two indexes of one row in opposite orders deadlock, unless one of them skips."""
    found = {(one, other): cycles(one, other) for one, other in itertools.combinations_with_replacement(verbs(), 2)}
    rows = {pair: {edge for edge in edge_set if _of_one_row(edge)} for pair, edge_set in found.items()}
    assert not {pair: edge_set for pair, edge_set in rows.items() if edge_set}


def _of_one_row(edge: tuple[Lock, Lock]) -> bool:
    """An index and the row itself. Two further indexes are only locked by a session that has locked the row."""
    row = tsql.clustered(edge[0].table).name
    return row in {edge[0].key, edge[1].key}


def test_no_two_verbs_lock_two_tables_in_opposite_orders() -> None:
    """Rows of two tables: one that is locked by its key is waited for, whatever index leads to it elsewhere."""

    def across(verb: str) -> set[tuple[str, str]]:
        rows = [lock for lock in tsql.locks(tsql.verbs()[verb]) if tsql.indexes()[lock.key].identifies]
        pairs = itertools.combinations(rows, 2)
        return {(held.table, wanted.table) for held, wanted in pairs if wanted.waits and held.table != wanted.table}

    orders = {verb: across(verb) for verb in verbs()}
    assert ("Jobs", "Marks") in orders["fold_marks"], "the rule sees the orders that there are"
    against = [
        (one, other, held, wanted)
        for one, other in itertools.combinations(verbs(), 2)
        for held, wanted in orders[one]
        if (wanted, held) in orders[other]
    ]
    assert not against


def test_computed_columns_are_written_with_their_sources() -> None:
    """Otherwise an index on a computed column would be missing in the order of locks."""
    assert tsql.computed() == {
        "DueAt": {"NotBefore", "NextRunTime"},
        "LimitLane": {"LimitKey", "Isolated", "Suspended", "Queue", "JobName", "Priority"},
    }


def test_a_cycle_would_be_found() -> None:
    """A claim that waited for the row after its index would deadlock with a pause."""
    claim = tsql.locks(tsql.verbs()["claim_jobs"])
    polling = next(lock for lock in claim if lock.key == "IX_Jobs_Polling")
    row = next(lock for lock in claim if lock.key == "UQ_Jobs_RowNo")
    waiting = {(polling._replace(waits=True), row._replace(waits=True))}
    assert waiting & {(wanted, held) for held, wanted in edges("pause_job")}


def test_the_storm_sends_every_verb_that_locks() -> None:
    """`make verify-mssql` must not pass over a verb that was added later."""
    writing = {
        verb
        for verb, tree in tsql.verbs().items()
        if any(access.target or "UpdLock" in access.hints for access in tsql.accesses(tree))
    }
    assert writing - mssql_storm.WRITING == {"drain_shard", "mark_shard"}
    assert mssql_storm.WRITING - writing == {"guard_lease"}, "it locks a name, not a row"
