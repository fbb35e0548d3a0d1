"""What a lost answer means, verb by verb: the one table that all stores send by.

READ        It changes nothing. Whatever went wrong, the policy asks again.
REPEATABLE  Sent twice it changes nothing more, and answers the same. The policy sends it again.
ONCE        Certainly not applied: the policy sends it again. Answer lost: AmbiguousError. Only the caller can find
            out what became of it, and does:
                enqueue_jobs                           producer/enqueue.py: the same ids again, `again=True`
                complete_jobs, fail_jobs, release_jobs, suspend_jobs
                                                       worker/settle.py: the same fence again, then rows and ledger
                declare_job                            worker/declare.py: reads the row at its next attempt
                resign_lease                           leases/leader.py: again for 2 s; it ends anyway
                pause_job … end_pause, forget_steps, release_lease
                                                       the person who asked looks at the row
AT_ONCE     As ONCE, and not retried either: a claim is trusted from before it was sent, so it must not wait (a
            lost claim is found by its token: worker/beater.py), and a signal is not worth waiting for.
"""

from __future__ import annotations

from typing import NamedTuple


class Sending(NamedTuple):
    """How a verb is sent."""

    writes: bool
    resend_ambiguous: bool
    retry: bool


READ = Sending(writes=False, resend_ambiguous=True, retry=True)
REPEATABLE = Sending(writes=True, resend_ambiguous=True, retry=True)
ONCE = Sending(writes=True, resend_ambiguous=False, retry=True)
AT_ONCE = Sending(writes=True, resend_ambiguous=False, retry=False)

WAITING = frozenset(
    {"enqueue_unique", "schedule_jobs", "replace_job", "record_progress", "send_signals", "forget_steps"}
    | {"pause_job", "resume_job", "run_job_now", "retry_job", "discard_job", "cancel_job", "add_pause", "end_pause"}
)
"""Statements of users' calls that wait for what another session has locked, for as long as it likes. A store sends a
few at once, so that claims and outcomes find a connection meanwhile."""

VERBS: dict[str, Sending] = {
    # producing
    "enqueue_jobs": ONCE,
    "read_keys": READ,
    "read_declared": READ,
    "declare_job": ONCE,
    # unique tasks
    "enqueue_unique": ONCE,
    "read_unique": READ,
    "replace_job": REPEATABLE,
    "prune_keys": REPEATABLE,
    # the protocol
    "claim_jobs": AT_ONCE,
    "claim_limited": AT_ONCE,
    "heartbeat_jobs": REPEATABLE,
    "read_holds": READ,
    "complete_jobs": ONCE,
    "complete_one_offs": ONCE,
    "fail_jobs": ONCE,
    "release_jobs": ONCE,
    "reclaim_jobs": REPEATABLE,
    "read_overdue": READ,
    "read_outcomes": READ,
    "record_progress": REPEATABLE,
    # durable functions
    "record_steps": REPEATABLE,
    "suspend_jobs": ONCE,
    "read_steps": READ,
    "read_waits": READ,
    "send_signals": REPEATABLE,
    "fold_marks": REPEATABLE,
    "forget_steps": ONCE,
    "list_signals": READ,
    "list_children": READ,
    # limits
    "read_limits": READ,
    "write_limit": ONCE,
    "list_limits": READ,
    "list_limit_keys": READ,
    "recount_limits": REPEATABLE,
    "audit_limits": READ,
    # cancelling: sent again after a lost answer, it finds the job gone, and the ledger says how it ended
    "cancel_job": REPEATABLE,
    "cancel_children": REPEATABLE,
    "read_cancelled": READ,
    "signal_cancel": AT_ONCE,
    # workers and signals
    "register_worker": REPEATABLE,
    "stop_worker": REPEATABLE,
    "signal": AT_ONCE,
    "signal_lease": AT_ONCE,
    "signal_awaited": AT_ONCE,
    "signal_ended": AT_ONCE,
    # leases
    "acquire_lease": REPEATABLE,
    "heartbeat_lease": REPEATABLE,
    "resign_lease": ONCE,
    "release_lease": ONCE,
    "list_leases": READ,
    # maintenance
    "mark_dead_workers": REPEATABLE,
    "prune_runs": REPEATABLE,
    "renew_partitions": REPEATABLE,
    "prune_records": REPEATABLE,
    "roll_up_runs": REPEATABLE,
    "read_surplus": READ,
    "list_metrics": READ,
    # operators
    "pause_job": ONCE,
    "resume_job": ONCE,
    "run_job_now": REPEATABLE,
    "retry_job": ONCE,
    "discard_job": ONCE,
    "add_pause": ONCE,
    "end_pause": ONCE,
    "list_pauses": READ,
    # shards
    "read_shard": READ,
    "mark_shard": REPEATABLE,
    "drain_shard": REPEATABLE,
    # reading
    "open": REPEATABLE,
    "read_schema": READ,
    "read_now": READ,
    "read_status": READ,
    "read_job": READ,
    "list_jobs": READ,
    "list_runs": READ,
    "read_results": READ,
    "list_workers": READ,
    # the dashboard
    "read_overview": READ,
    "page_jobs": READ,
    "find_jobs": READ,
    "list_schedules": READ,
    "list_dead_errors": READ,
    "sample_runs": READ,
    "read_payload": READ,
    "read_job_limits": READ,
    "record_action": REPEATABLE,
    "end_action": REPEATABLE,
    "list_actions": READ,
    # auditing
    "audit_tasks": READ,
    "audit_slice": READ,
    "audit_slots": READ,
    "audit_durable": READ,
    "audit_waiting": READ,
    "audit_losses": READ,
    "examine": READ,
}
