"""Admin pages for jobs, dead letters and runs: to read, and to operate with the permission `reltask.operate_job`.

An action goes through the job's handle, as the command line does; it never writes a row itself. Arguments and results
are not shown: they may hold what an operator should not see.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from reltask.errors import ReltaskError
from reltask.integrations.django.models import DeadLetter, Job, Run
from reltask.integrations.django.project import app_of, main_alias


class Reading(admin.ModelAdmin):
    """Pages that change nothing by themselves."""

    def has_add_permission(self, _request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, _request: HttpRequest, _obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may act on jobs."""
        return bool(request.user.has_perm("reltask.operate_job"))


def _action(change: str, title: str) -> Any:
    """An action that does this to each of the chosen jobs, and reports those that refused."""

    @admin.action(description=title, permissions=["operate"])
    def act(page: Reading, request: HttpRequest, chosen: QuerySet) -> None:
        done = 0
        for job in chosen:
            try:
                getattr(app_of(main_alias()).job(job.id), f"{change}_sync")()
            except ReltaskError as error:
                page.message_user(request, f"{job}: {error}", messages.WARNING)
            else:
                done += 1
                page.log_change(request, job, f"{title}, at fence {job.fence}")
        page.message_user(request, f"{title}: {done}", messages.SUCCESS if done else messages.INFO)

    act.__name__ = change
    return act


@admin.register(Job)
class JobAdmin(Reading):
    """What is due, what runs, and what waits."""

    list_display: Any = ("task", "state", "queue", "priority", "due_at", "attempt", "locked_by")
    list_filter = ("task", "queue")
    search_fields = ("task", "key")
    fields = (
        *("id", "task", "key", "state", "queue", "priority", "schedule", "created_at", "due_at", "slot_no"),
        *("attempt", "max_attempts", "fence", "locked_by", "locked_at", "heartbeat_at", "runs"),
    )
    readonly_fields = ("state", "runs")
    show_full_result_count = False
    actions: Any = (
        _action("run_now", "Run now"),
        _action("pause", "Pause"),
        _action("resume", "Resume"),
        _action("cancel", "Cancel"),
    )

    @admin.display
    def state(self, job: Job) -> str:
        """The job's state, in a word."""
        if job.dead_at is not None:
            return "dead"
        if job.locked_by is not None:
            return "running"
        return "paused" if job.paused_at is not None else "suspended" if job.suspended else "waiting"

    @admin.display
    def runs(self, job: Job) -> str:
        """Its runs that have ended, newest first."""
        ended = Run.objects.using(job._state.db).filter(job_id=job.id).order_by("-fence")[:20]  # noqa: SLF001
        return (
            "\n".join(f"{run.finished_at:%Y-%m-%d %H:%M:%S} {run.outcome}, by {run.worker}" for run in ended) or "none"
        )


@admin.register(DeadLetter)
class DeadLetterAdmin(JobAdmin):
    """Jobs that have used up their attempts."""

    list_display = ("task", "queue", "dead_at", "attempt", "last_error")
    actions = (_action("retry", "Retry"), _action("discard", "Discard"))

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).filter(dead_at__isnull=False)

    @admin.display
    def last_error(self, job: Job) -> str:
        """The last line of its last failure."""
        last = Run.objects.using(job._state.db).filter(job_id=job.id).order_by("-fence").first()  # noqa: SLF001
        lines = (last.error or "").strip().splitlines() if last else []
        return lines[-1][:200] if lines else ""


@admin.register(Run)
class RunAdmin(Reading):
    """The ledger, newest first."""

    list_display = ("task", "outcome", "queue", "attempt", "claimed_at", "finished_at", "worker", "job_id", "fence")
    list_display_links = None
    list_filter = ("outcome", "task", "queue")
    search_fields = ("task",)
    show_full_result_count = False
