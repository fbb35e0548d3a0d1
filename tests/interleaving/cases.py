"""The table of cases: each has a name, a setup and the function that runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.interleaving.batch_cases import opposite_enqueues, opposite_keys, opposite_settlements
from tests.interleaving.durable_case_table import DURABLE_CASES
from tests.interleaving.job_cases import (
    a_cancel_meets_a_completion,
    a_cancelled_claim_that_fails,
    a_claim_meets_a_declaration,
    a_claim_with_an_old_snapshot,
    a_completion_saves_the_next_slot,
    a_completion_sent_twice,
    a_declaration_meets_a_claim,
    a_held_row_delays_one_outcome,
    a_resend_meets_the_end_of_its_job,
    a_resend_with_an_old_snapshot,
    a_skipped_head_is_asked_for_again,
    beat_meets_a_reclaim,
    beat_meets_own_completion,
    late_write_meets_a_reclaim,
    read_holds_knows_the_fence,
    reclaim_meets_a_renewal,
    sent_twice,
    two_claims_of_everything,
    two_claims_share_a_lane,
)
from tests.interleaving.lease_cases import (
    a_beat_meets_a_takeover,
    a_beat_passes_its_leaders_transaction,
    a_leaders_write_keeps_the_lease,
    a_lease_given_back_under_a_transaction,
    a_resignation_hands_over_at_once,
    a_try_meets_a_renewal,
    a_write_waits_for_a_takeover,
    an_old_terms_write_finds_nothing,
    two_prunes_at_once,
    two_tries_with_the_same_snapshot,
)
from tests.interleaving.lease_operations import LED, lead
from tests.interleaving.lease_setups import leased
from tests.interleaving.limit_cases import LIMIT_CASES
from tests.interleaving.operations import LATER, Operation, complete, fail, recurring, release
from tests.interleaving.pause_cases import PAUSE_CASES
from tests.interleaving.setups import KEYED, LONG_AGO, RIVAL, ROWS, Setup, held, ready
from tests.interleaving.steps import Case

EXPIRED = Setup("directed: expired", held(recurring(), since=LONG_AGO), [])
READY = Setup("directed: ready", ready(recurring()), [])
LANE = Setup("directed: two in a lane", ready(*ROWS[:2]), [])
THREE = Setup("directed: three held", held(*ROWS, since=LONG_AGO), [])
EMPTY = Setup("directed: empty", ready(), [])
ONE_OFF = Setup("directed: held one-off", held(KEYED, since=LONG_AGO), [])
LAST = Setup("directed: held, last attempt", held(recurring(max_attempts=1), since=LONG_AGO), [])
LED_ONCE = Setup("directed: lease ended", leased(-LATER), [])
LEADING = Setup("directed: lease ends in between", leased(LATER / 2), [])


SETTLEMENTS: dict[str, Callable[..., Operation]] = {
    "complete": partial(complete, again=True),
    "finish": partial(complete, again=False),
    "fail": fail,
    "release": release,
}

CASES: dict[str, tuple[Setup, Case]] = {
    "beat meets own completion": (EXPIRED, beat_meets_own_completion),
    "read_holds knows the fence": (EXPIRED, read_holds_knows_the_fence),
    "reclaim meets a renewal": (EXPIRED, reclaim_meets_a_renewal),
    "beat meets a reclaim": (EXPIRED, beat_meets_a_reclaim),
    "a completion saves the next slot": (EXPIRED, a_completion_saves_the_next_slot),
    "a cancel meets a completion": (ONE_OFF, a_cancel_meets_a_completion),
    "a cancelled claim that fails": (LAST, a_cancelled_claim_that_fails),
    "two claims share a lane": (LANE, two_claims_share_a_lane),
    "a claim with an old snapshot": (LANE, a_claim_with_an_old_snapshot),
    "two claims of everything": (LANE, two_claims_of_everything),
    "a skipped head is asked for again": (LANE, a_skipped_head_is_asked_for_again),
    **{
        f"late {name} meets a reclaim": (EXPIRED, late_write_meets_a_reclaim(late()))
        for name, late in SETTLEMENTS.items()
    },
    **{
        f"{name} meets a held row{then}": (THREE, a_held_row_delays_one_outcome(settle, then_reclaimed=bool(then)))
        for name, settle in SETTLEMENTS.items()
        if name != "finish"  # on PostgreSQL it waits, and is sent again as "complete"
        for then in ("", ", then a reclaim")
    },
    "a completion sent twice": (EXPIRED, a_completion_sent_twice(again=True)),
    "the end of a one-off sent twice": (ONE_OFF, a_completion_sent_twice(again=False)),
    "an id sent twice": (EMPTY, sent_twice(KEYED, KEYED, first_commits=True)),
    "an id sent twice, first rolled back": (EMPTY, sent_twice(KEYED, KEYED, first_commits=False)),
    "a key sent twice": (EMPTY, sent_twice(KEYED, RIVAL, first_commits=True)),
    "a key sent twice, first rolled back": (EMPTY, sent_twice(KEYED, RIVAL, first_commits=False)),
    "a resend meets the end of its job": (ONE_OFF, a_resend_meets_the_end_of_its_job),
    "a resend with an old snapshot": (ONE_OFF, a_resend_with_an_old_snapshot),
    "a declaration meets a claim": (READY, a_declaration_meets_a_claim),
    "a claim meets a declaration": (READY, a_claim_meets_a_declaration),
    **{
        f"opposite batches: {one}, {other}": (THREE, opposite_settlements(SETTLEMENTS[one], SETTLEMENTS[other]))
        for one in SETTLEMENTS
        for other in SETTLEMENTS
    },
    "opposite batches: enqueue, same ids": (EMPTY, opposite_enqueues),
    "opposite batches: enqueue, same keys": (EMPTY, opposite_keys),
    **{
        f"{name} keeps the lease": (LED_ONCE, a_leaders_write_keeps_the_lease(write))
        for name, write in {"lead": lead, **LED}.items()
    },
    **{f"{name} with an old term": (LED_ONCE, an_old_terms_write_finds_nothing(write)) for name, write in LED.items()},
    **{
        f"{name} waits for a takeover": (LED_ONCE, a_write_waits_for_a_takeover(write))
        for name, write in {"lead": lead, **LED}.items()
    },
    "a beat passes its leader's transaction": (LEADING, a_beat_passes_its_leaders_transaction),
    "a lease given back under a transaction": (LEADING, a_lease_given_back_under_a_transaction),
    "a try meets a renewal": (LEADING, a_try_meets_a_renewal),
    "a beat meets a takeover": (LEADING, a_beat_meets_a_takeover),
    "two tries with the same snapshot": (LED_ONCE, two_tries_with_the_same_snapshot),
    "two prunes at once": (LED_ONCE, two_prunes_at_once),
    "a resignation hands over at once": (LEADING, a_resignation_hands_over_at_once),
    **{name: (LANE, case) for name, case in PAUSE_CASES.items()},
    **LIMIT_CASES,
    **DURABLE_CASES,
}
