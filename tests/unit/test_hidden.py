"""What `Annotated[…, Hidden]` keeps out of views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest
from pydantic import BaseModel, Field

from reltask import App, Hidden
from reltask.model.arguments import Arguments
from reltask.model.hidden import masked_arguments, masked_json
from reltask.model.screens import Payload
from reltask.producer.shown import Shown

Secret = Annotated[str, Hidden]


@dataclass
class Data:
    number: Secret
    name: str = "n"
    inner: list[Data] = field(default_factory=list)


class Struct(msgspec.Struct, rename="camel"):
    card_number: Secret


class Model(BaseModel):
    number: Annotated[str, Hidden] = Field(alias="theNumber")
    name: str = "n"


class Typed(TypedDict):
    number: Secret


class Tuple(NamedTuple):
    number: Secret
    name: str


def typed(hint: Any) -> Callable[..., None]:
    def function(value: Any) -> None: ...

    function.__annotations__ = {"value": hint}
    return function


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Secret, "4111"),
        (Annotated[str, Hidden()], "4111"),
        (Secret | None, "4111"),
        (list[Secret], ["4111", "4111"]),
        (dict[str, Secret], {"a": "4111"}),
        (dict[str, list[Secret | int]], {"a": ["4111", 1]}),
        (Annotated[list[str], Hidden], ["4111"]),
        (Data, Data("4111", inner=[Data("4111", inner=[Data("4111")])])),
        (list[Data] | None, [Data("4111")]),
        (Struct, Struct("4111")),
        (Model, Model(theNumber="4111")),
        (Typed, {"number": "4111"}),
        (Tuple, Tuple("4111", "n")),
        (tuple[int, Secret], (1, "4111")),
    ],
)
def test_what_is_hidden_is_masked_however_deep(hint: Any, value: Any) -> None:
    """In parameters, fields, items and unions; the same JSON is read by the task as before."""
    arguments = Arguments(typed(hint), skip_first=False)
    text = arguments.encode((value,), {})
    assert "4111" in text
    shown = str(masked_arguments(text, arguments.hints))
    assert "4111" not in shown
    assert "***" in shown
    assert arguments.decode(text) == {"value": value}


def test_the_rest_is_shown_as_it_is() -> None:
    """Only what is marked is masked; None is no secret."""

    def charge(customer: int, card: Secret, note: Secret | None = None, data: Data | None = None) -> Any: ...

    arguments = Arguments(charge, skip_first=False)
    text = arguments.encode((7, "4111"), {"note": None, "data": Data("4111", "visible")})
    assert masked_arguments(text, arguments.hints) == {
        "customer": 7,
        "card": "***",
        "note": None,
        "data": {"number": "***", "name": "visible", "inner": []},
    }


def test_a_result_is_masked_by_its_annotation() -> None:
    """`-> Annotated[str, Hidden]`, or a class with such a field."""
    assert masked_json('"4111"', Secret) == '"***"'
    assert masked_json('[{"number":"4111","name":"n"}]', list[Data]) == '[{"number":"***","name":"n"}]'
    assert masked_json(None, Secret) is None
    assert masked_json("7", Any) == "7"


def test_arguments_of_an_unknown_task_are_all_masked() -> None:
    """No type says which may be seen. Their names are shown."""
    app = App("sqlite:///:memory:")
    payload = Payload('{"card":"4111","cents":5}', None, "of another service", "default", 5)
    assert Shown(app.registry).arguments(payload) == {"card": "***", "cents": "***"}


def test_a_call_does_not_show_its_arguments() -> None:
    """The repr of a call appears in tracebacks and logs."""
    app = App("sqlite:///:memory:")

    @app.task
    async def charge(card: str) -> None: ...

    assert "4111" not in repr(charge.using(headers={"card": "4111"}).call("4111"))
