"""`reltask audit`: check the promises against the ledger."""

from __future__ import annotations

import sys

import click
import msgspec

from reltask.app import App
from reltask.cli.migrate import dialect_of
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import first_line, print_json, print_line, print_lines, print_over, print_table, text, worker_text
from reltask.cli.target import with_app_argument
from reltask.model.audit import AuditProgress, Break, BreakKind, LossCount, Report, TaskCount, Wait, plural
from reltask.model.schema_name import split_schema
from reltask.producer.operations import AUDIT_TIMEOUT
from reltask.stores.statement import read_sql
from reltask.stores.store import BATCH

VERBS = ["audit_tasks", "audit_slots", "audit_durable", "audit_waiting", "audit_losses", "audit_limits"]

COUNTS = ["JOBS", "ONCE", "TWICE", "LOST", "SKIPPED", "RUNS FAILED", "RUNS LOST", "LATE P50", "P95", "MAX"]


@click.command(name="audit")
@with_app_argument
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--timeout", metavar="DURATION", default=AUDIT_TIMEOUT, help="How long it may take; 10m by default.")
@click.option("--sql", "only_sql", is_flag=True, help="Print the queries, for a DBA, instead of running them.")
def command(app: App, *, task: str | None, timeout: str, only_sql: bool, as_json: bool) -> int:
    """Check that every slot was completed once and none was lost. The exit status is 1 if there is a violation.

    The command only reads; the role reltask_read is sufficient.
    """
    if only_sql:
        _print_sql(app, as_json=as_json)
        return EXIT_OK
    watch = _show_progress if sys.stderr.isatty() else None
    try:
        report = app.audit_sync(task=task, lock_timeout=app.settings.worker.lock_timeout, timeout=timeout, watch=watch)
    finally:
        if watch is not None:
            print_over()
    if as_json:
        print_json({"violations": report.violations, **msgspec.structs.asdict(report)})
    else:
        _print_report(report)
    return EXIT_ERROR if report.violations else EXIT_OK


def _show_progress(progress: AuditProgress) -> None:
    """One line, which each call writes again."""
    of_rows = f" of {progress.of_rows:,}" if progress.of_rows else ""
    rows = f", {progress.rows:,}{of_rows} ledger rows" if progress.rows else ""
    print_over(f"Reading {progress.part}{rows}")


def _print_sql(app: App, *, as_json: bool) -> None:
    dialect, (_, schema) = dialect_of(app.url), split_schema(app.url)
    queries = {verb: read_sql(dialect, verb, schema) for verb in VERBS}
    if as_json:
        print_json(queries)
        return
    for verb, query in queries.items():
        print_lines(f"-- {verb}\n\n{query.strip()}\n")


def _print_report(report: Report) -> None:
    rows = [_row(count, report) for count in report.tasks]
    print_table(["TASK", *COUNTS], rows, nothing="There are no jobs and no runs to check.")
    _print_cut(report.tasks)
    _print_losses(report.losses)
    _print_waits(report.waits)
    for limit in report.limits:
        print_line()
        print_line(f"violation[{limit.kind}] key {limit.key}: {limit.text}")
    for found in report.breaks_by_job().values():
        _print_job(found)
    print_line()
    print_line(_closing(report))


def _row(count: TaskCount, report: Report) -> list[object]:
    twice, lost = (report.concerned(kind, count.task) for kind in (BreakKind.SLOT_TWICE, BreakKind.SLOT_LOST))
    late = ["-" if value is None else f"{value:,.3f}s" for value in (count.late_p50, count.late_p95, count.late_max)]
    slots = [count.ended - twice, twice, lost, count.skipped]
    return [count.task, count.jobs, *slots, count.failed, count.lost, *late]


def _print_cut(tasks: list[TaskCount]) -> None:
    if any(count.cut for count in tasks):
        print_line()
    for count in tasks:
        if count.cut:
            print_line(f"{count.task}: the oldest runs of {plural(count.cut, 'job')} have been pruned.")


def _print_losses(losses: list[LossCount]) -> None:
    if losses:
        print_line()
        print_line("Runs that lost their lock, by worker, with the last recorded reason:")
        columns = ["TASK", "OUTCOME", "WORKER", "RUNS", "CAME BACK", "LAST", "REASON"]
        print_table(columns, [_loss(loss) for loss in losses], nothing="")
        if returned := sum(loss.returned for loss in losses):
            print_line(
                f"The workers of {plural(returned, 'run')} were seen alive after the loss. Their late writes for these"
                " runs were refused; a refused write leaves no row."
            )


def _loss(loss: LossCount) -> list[object]:
    who, why = worker_text(loss.worker), first_line(loss.reason)
    return [loss.task, loss.outcome, who, loss.runs, loss.returned, loss.last_at, why]


def _print_waits(waits: list[Wait]) -> None:
    for wait in waits:
        level = "violation" if wait.kind.is_violation else "note"
        print_line()
        print_line(f"{level}[{wait.kind}] {wait.task} in queue {wait.queue}: {wait.text}")
        print_line(f"  longest: {wait.job_id}, since {text(wait.since)} UTC")


def _print_job(found: list[Break]) -> None:
    first = found[0]
    key = f", key {first.key}" if first.key else ""
    starts = next((one.starts_at for one in found if one.starts_at is not None), 1)
    history = f"; its history starts at slot {starts}" if starts > 1 else ""
    print_line()
    print_line(f"job {first.job_id} (task {first.task}{key}{history})")
    for one in found:
        print_line(f"  violation[{one.kind}] {one.text}")


def _closing(report: Report) -> str:
    more = " or more" if len(report.breaks) >= BATCH else ""
    counted = f"{plural(report.jobs, 'job')}, {plural(report.slots, 'slot')}"
    see = "; see docs/audit.md" if report.violations else ""
    return f"{counted}: {plural(report.violations, 'violation')}{more}{see}"
