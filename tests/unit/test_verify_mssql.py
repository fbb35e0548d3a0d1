"""What `make verify-mssql` makes of plans from a server's cache. The plans have the form that Microsoft documents."""

from __future__ import annotations

import pytest

from reltask.stores.statement import read_sql
from tests import mssql_server
from tests.verify_mssql import NOT_HERE, escalation, plans, scans

OBJECT = '<Object Database="[d]" Schema="[reltask]" Table="[{table}]" Index="[{index}]"/>'
OPERATOR = '<RelOp NodeId="1" PhysicalOp="{op}"><OutputList/><{element}>{named}{inner}</{element}></RelOp>'
PLAN = (
    '<ShowPlanXML xmlns="http://schemas.microsoft.com/sqlserver/2004/07/showplan"><BatchSequence><Batch><Statements>'
    "<StmtSimple><QueryPlan>{}</QueryPlan></StmtSimple></Statements></Batch></BatchSequence></ShowPlanXML>"
)


def operator(op: str, table: str, index: str = "", element: str = "IndexScan", inner: str = "") -> str:
    return OPERATOR.format(op=op, element=element, named=OBJECT.format(table=table, index=index), inner=inner)


def sent(verb: str) -> str:
    """The text of a verb as the cache has it, after the parameters."""
    return "(@P1 datetime2,@P2 nvarchar(4000))" + read_sql("mssql", verb)


@pytest.mark.parametrize(
    ("op", "index"), [("Index Scan", "IX_Jobs_Polling"), ("Clustered Index Scan", "UQ_Jobs_RowNo")]
)
def test_a_scan_of_jobs_is_found(op: str, index: str) -> None:
    """Also below another operator."""
    plan = PLAN.format(operator("Nested Loops", "", element="NestedLoops", inner=operator(op, "Jobs", index)))
    assert scans(sent("complete_jobs"), plan) == [f"complete_jobs: {op} of Jobs by {index}"]


def test_a_scan_of_a_table_variable_beside_a_seek_is_none() -> None:
    """Nearly every plan has one: the rows that a batch was given."""
    given = operator("Table Scan", "@given", element="TableScan")
    plan = PLAN.format(
        operator("Nested Loops", "", element="NestedLoops", inner=given + operator("Index Seek", "Jobs", "PK_Jobs"))
    )
    assert scans(sent("complete_jobs"), plan) == []


def test_an_index_that_a_verb_walks_on_purpose_is_expected() -> None:
    """The first row by its order; by another verb it is a scan. Statements of people read whole tables."""
    plan = PLAN.format(operator("Index Scan", "Jobs", "IX_Jobs_Expiring"))
    assert scans(sent("claim_jobs"), plan) == []
    assert scans(sent("reclaim_jobs"), plan) != []
    assert scans(sent("list_jobs"), plan) == []


def test_reads_of_workers_are_not_left_out() -> None:
    """Their purpose is to read as well."""
    plan = PLAN.format(operator("Index Scan", "Jobs", "PK_Jobs"))
    assert scans(sent("read_holds"), plan) == ["read_holds: Index Scan of Jobs by PK_Jobs"]


@pytest.mark.parametrize("babelfish", [False, True])
def test_what_a_server_does_not_show_is_no_good_news(monkeypatch: pytest.MonkeyPatch, *, babelfish: bool) -> None:
    """Without the permission for its views nothing was verified; only an emulator has none."""

    def refuse(_url: str) -> None:
        raise PermissionError("VIEW SERVER STATE permission was denied")

    monkeypatch.setattr(mssql_server, "open_connection", refuse)
    monkeypatch.setattr(mssql_server, "is_babelfish", lambda: babelfish)
    for finding in (plans("mssql://h/d"), escalation("mssql://h/d")):
        assert finding.good is babelfish
        assert (finding.result == NOT_HERE) is babelfish
