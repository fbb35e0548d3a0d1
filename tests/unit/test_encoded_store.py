"""The codec's store stands before every verb that carries a payload."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pytest

from reltask.model.durable import ChildEnd, NewSignal, Recording, SignalView, StepRecord, StepView, Waits
from reltask.model.job import Claim, ClaimAnswer, Completion, NewJob
from reltask.model.screens import ListedJob, Payload
from reltask.model.views import JobEnd, JobView, RunView
from reltask.stores.encoded import EncodedBorrowed, EncodedStore, EncodedTransaction
from reltask.stores.store import Borrowed, Store, Transaction

CARRIERS = {
    *(NewJob, Completion, Claim, ClaimAnswer, JobView, RunView, JobEnd, ListedJob, Payload),
    *(NewSignal, SignalView, Recording, StepRecord, StepView, Waits, ChildEnd, Transaction, Borrowed, Store),
}
"""What has a payload in one of its fields, or leads to verbs that do."""


def mentions(hint: Any) -> bool:
    """Whether an annotation contains one of them."""
    return hint in CARRIERS or any(mentions(part) for part in typing.get_args(hint) if not isinstance(part, list))


def carrying(protocol: type) -> list[str]:
    """The methods of a protocol that take or return a payload."""
    methods = {
        name: method
        for kind in protocol.__mro__
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    named = {**{kind.__name__: kind for kind in CARRIERS}}
    return sorted(
        name
        for name, method in methods.items()
        if any(mentions(hint) for hint in typing.get_type_hints(method, localns=named).values())
    )


@pytest.mark.parametrize(
    ("protocol", "wrapper"),
    [(Store, EncodedStore), (Transaction, EncodedTransaction), (Borrowed, EncodedBorrowed)],
    ids=["store", "transaction", "borrowed"],
)
def test_no_payload_passes_the_codec_by(protocol: type, wrapper: type) -> None:
    """A new verb with a payload must be added there; all others are handed on."""
    verbs = carrying(protocol)
    assert len(verbs) >= 2
    own = {name for kind in wrapper.__mro__[:-1] for name in vars(kind)}
    assert [verb for verb in verbs if verb not in own] == []
