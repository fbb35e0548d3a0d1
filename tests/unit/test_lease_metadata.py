"""The metadata of a leader: checked when it is set, sent once."""

from __future__ import annotations

import json

import pytest

from reltask.errors import ArgumentsError
from reltask.leases.metadata import LIMIT, Metadata


def test_it_is_a_dict_of_json_values() -> None:
    """Set, read, delete, iterate; what it returns are copies."""
    metadata = Metadata()
    metadata["a"] = {"x": [1, 2]}
    metadata.update(b=2, c=None)
    del metadata["b"]
    metadata["a"]["x"].append(3)
    assert dict(metadata) == {"a": {"x": [1, 2]}, "c": None}
    assert (len(metadata), repr(metadata)) == (2, "{'a': {'x': [1, 2]}, 'c': None}")
    with pytest.raises(KeyError):
        del metadata["b"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": object()}, "cannot be stored"),
        ({"a": float("nan")}, "cannot be stored"),
        ({1: "a"}, "not a string"),
        ({"a": "x" * LIMIT}, "more than the limit of 16,384"),
    ],
)
def test_what_cannot_be_published_is_refused_at_once(values: dict[str, object], message: str) -> None:
    """At the assignment, not at a later heartbeat; nothing is changed."""
    metadata = Metadata()
    metadata["kept"] = 1
    with pytest.raises(ArgumentsError, match=message):
        metadata.change(values)
    assert dict(metadata) == {"kept": 1}


def test_a_heartbeat_carries_what_the_database_does_not_have_yet() -> None:
    """Until it is acknowledged; a change in between is sent with the next one."""
    metadata = Metadata()
    assert metadata.unsent() is None
    metadata["a"] = 1
    version, text = metadata.unsent() or (0, "")
    assert json.loads(text) == {"a": 1}
    metadata["a"] = 2
    metadata.sent(version)
    assert metadata.unsent() == (version + 1, '{"a":2}')
    metadata.sent(version + 1)
    assert metadata.unsent() is None
    metadata.restart()
    assert metadata.unsent() == (version + 2, "{}")
