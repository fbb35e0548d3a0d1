"""The table of the cases of durable functions: each has a name, a setup and the function that runs it."""

from __future__ import annotations

from datetime import timedelta

from tests.interleaving import durable_cases as cases
from tests.interleaving.durable_operations import CHILDREN, WAIT, record, suspend
from tests.interleaving.durable_setups import orphaned, running, suspended, waiting_again, with_children
from tests.interleaving.job_cases import late_write_meets_a_reclaim
from tests.interleaving.operations import one_off, recurring
from tests.interleaving.setups import LONG_AGO, RECENTLY, Setup, held, ready
from tests.interleaving.steps import Case

RUNNING = Setup("directed: durable running", running(WAIT, since=LONG_AGO), [])
PLAIN = Setup("directed: durable expired", running(since=LONG_AGO), [])
EXPIRED = Setup("directed: durable recurring", held(recurring(), since=LONG_AGO), [])
SIGNALLED = Setup("directed: durable signalled", running(WAIT, since=LONG_AGO, signalled=True), [])
ASLEEP = Setup("directed: suspended", suspended(), [])
CALLED = Setup("directed: suspended, signalled", suspended(signalled=True), [])
BACKOFF = Setup("directed: backoff", waiting_again(timedelta(hours=1)), [])
FAMILY = Setup("directed: children", with_children(since=RECENTLY), [])
LAST_CHANCE = Setup("directed: children at their last attempt", with_children(since=LONG_AGO, max_attempts=1), [])
ONE_ENDED = Setup("directed: one child has ended", with_children(since=RECENTLY, ended=True), [])
PARENT_RUNS = Setup("directed: parent runs", with_children(since=RECENTLY, asleep=False), [])
ORPHANED = Setup("directed: orphaned", orphaned, [])
TWO = Setup("directed: two to signal", ready(one_off(), one_off(CHILDREN[0].id)), [])

DURABLE_CASES: dict[str, tuple[Setup, Case]] = {
    "a signal locks no job": (RUNNING, cases.a_signal_locks_no_job),
    "crossing signals": (TWO, cases.crossing_signals),
    "a signal sent twice": (RUNNING, cases.a_signal_sent_twice),
    "a signal wakes only who waits for it": (ASLEEP, cases.a_signal_wakes_only_who_waits_for_it),
    "a backoff is not cut short": (BACKOFF, cases.a_backoff_is_not_cut_short),
    "a mark is folded before the suspension": (RUNNING, cases.a_mark_is_folded_before_the_suspension),
    "a suspension that has seen all": (RUNNING, cases.a_suspension_that_has_seen_all),
    "a suspension with an old snapshot": (RUNNING, cases.a_suspension_with_an_old_snapshot),
    "a fold meets a suspension": (PLAIN, cases.a_fold_meets_a_suspension),
    "a fold meets a claim": (CALLED, cases.a_fold_meets_a_claim),
    "a fold skips a locked job": (CALLED, cases.a_fold_skips_a_locked_job),
    "two folds with one snapshot": (ONE_ENDED, cases.two_folds_with_one_snapshot),
    "late record meets a reclaim": (EXPIRED, late_write_meets_a_reclaim(record())),
    "late suspension meets a reclaim": (EXPIRED, late_write_meets_a_reclaim(suspend())),
    "a record of an old fence": (PLAIN, cases.a_record_of_an_old_fence),
    "a step recorded twice": (PLAIN, cases.a_step_recorded_twice),
    "a signal consumed once": (SIGNALLED, cases.a_signal_consumed_once),
    "progress leaves one attempt": (PLAIN, cases.progress_leaves_one_attempt),
    "a transactional record waits": (SIGNALLED, cases.a_transactional_record_waits),
    "a transactional record meets a reclaim": (RUNNING, cases.a_transactional_record_meets_a_reclaim),
    "a forgotten step meets a run": (CALLED, cases.a_forgotten_step_meets_a_run),
    "a forgotten step meets a suspension": (RUNNING, cases.a_forgotten_step_meets_a_suspension),
    "the last two children end at once": (FAMILY, cases.the_last_two_children_end_at_once),
    "the first child does not wake its parent": (FAMILY, cases.the_first_child_does_not_wake_its_parent),
    "a child counts once": (FAMILY, cases.a_child_counts_once),
    "a reclaim ends a child": (LAST_CHANCE, cases.a_reclaim_ends_a_child),
    "a recording sent again keeps the count": (PARENT_RUNS, cases.a_recording_sent_again_keeps_the_count),
    "an end meets a fold": (ONE_ENDED, cases.an_end_meets_a_fold),
    "a cancelled child meets a claim": (ORPHANED, cases.a_cancelled_child_meets_a_claim),
    "a child of a live parent stays": (FAMILY, cases.a_child_of_a_live_parent_stays),
}
