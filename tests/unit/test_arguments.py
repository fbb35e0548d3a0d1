"""Arguments are stored in a row and read back; what cannot be is refused."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Self, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field

from reltask.errors import ArgumentsError, DeclarationError
from reltask.model.arguments import Arguments, encode_json

UserId = NewType("UserId", int)
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Address(TypedDict):
    street: str
    number: int


@dataclass
class User:
    id: UserId
    tags: list[str] = field(default_factory=list)
    boss: User | None = None


class Plain(msgspec.Struct):
    size: int


class Model(BaseModel):
    """A pydantic model with an alias and a computed field, and nothing else allowed."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(alias="Name")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.name)


class Strict(BaseModel):
    """Accepts no string for a date, except from JSON, which has nothing else."""

    model_config = ConfigDict(strict=True)
    at: datetime = datetime(2026, 11, 15, 9, tzinfo=UTC)
    id: UUID = UUID(int=5)
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")


class StrictField(BaseModel):
    day: Annotated[date, pydantic.Strict()] = date(2026, 11, 15)


class TwoAliases(BaseModel):
    """Is read by another name than it is written by."""

    size: int = Field(validation_alias="in", serialization_alias="out")


class ByName(BaseModel):
    """Has aliases that it does not read."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    size: int = Field(alias="Size")
    inner: TwoAliases


class Older(Model):
    """A model as before pydantic 2.11, which has no option to read by field names."""

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, *, strict: bool | None = None) -> Self:  # type: ignore[override]
        return super().model_validate_json(json_data, strict=strict)


class Sized(BaseModel, Generic[T]):
    size: T


class Masked(BaseModel):
    password: SecretStr


class Hidden(BaseModel):
    password: str = Field("none", exclude=True)


def typed_as(hint: Any) -> Callable[..., None]:
    """A function whose one parameter has this annotation."""

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = hint
    return function


def round_trip(hint: Any, value: object) -> object:
    arguments = Arguments(typed_as(hint), skip_first=False)
    return arguments.decode(arguments.encode((value,), {}))["value"]


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 42),
        (Any, 2**70),
        (float, 1.5),
        (str, "grüße \x00 \U0001f600"),
        (bool, False),
        (None, None),
        (bytes, b"\x00\xff"),
        (UUID, UUID(int=5)),
        (datetime, datetime(2026, 11, 15, 9, tzinfo=UTC)),
        (date, date(2026, 11, 15)),
        (timedelta, timedelta(seconds=90)),
        (Decimal, Decimal("0.10")),
        (Colour, Colour.RED),
        (Level, Level.HIGH),
        (Literal["a", "b"], "b"),
        (UserId, UserId(7)),
        (User, User(UserId(1), ["x"], User(UserId(2)))),
        (User | None, None),
        (list[User], [User(UserId(1))]),
        (dict[str, list[Decimal]], {"a": [Decimal("1.1")]}),
        (tuple[int, str], (1, "a")),
        (set[int], {1, 2}),
        (Address, {"street": "Main", "number": 1}),
        (Plain, Plain(3)),
        (Model, Model(Name="m")),
        (Model | None, None),
        (Model | None, Model(Name="m")),
        (list[Model], [Model(Name="a"), Model(Name="b")]),
        (Strict, Strict()),
        (StrictField, StrictField()),
        (TwoAliases, TwoAliases.model_validate({"in": 1})),
        (ByName, ByName.model_validate({"size": 1, "inner": {"in": 1}}, by_alias=True, by_name=True)),
        (Older, Older(Name="m")),
        (Sized[int], Sized(size=1)),
        (Annotated[int, msgspec.Meta(ge=1)], 1),
        (Any, {"deep": [1, None, {"er": "x"}]}),
    ],
    ids=str,
)
def test_arguments_come_back_equal(hint: Any, value: object) -> None:
    """A value of the annotated type is stored as JSON and read back as the same value."""
    assert round_trip(hint, value) == value


@pytest.mark.parametrize(
    "hint", [int, Model, Model | None, User, User | None, Address, Colour, Any, list[Model]], ids=str
)
def test_parameter_with_a_default_may_be_left_out(hint: Any) -> None:
    """A default is not stored, so a default that changes in code also applies to stored jobs."""

    def function(value: Any = "default") -> None: ...

    function.__annotations__["value"] = hint
    arguments = Arguments(function, skip_first=False)
    assert arguments.encode((), {}) == "{}"
    assert arguments.decode("{}") == {}


if find_spec("attrs"):  # not a dependency of reltask, not even of its tests

    def test_attrs_classes_come_back_equal() -> None:
        """Attrs classes are like dataclasses."""
        attrs = import_module("attrs")
        point = attrs.make_class("Dot", {"x": attrs.field(type=int)})
        assert round_trip(point, point(3)) == point(3)

    def test_attrs_subclasses_are_refused() -> None:
        """An attrs subclass would lose its additional fields."""
        attrs = import_module("attrs")
        dot = attrs.make_class("Dot", {"x": attrs.field(type=int)})
        dot3 = attrs.make_class("Dot3", {"z": attrs.field(type=int)}, bases=(dot,))
        line = attrs.make_class("Line", {"end": attrs.field(type=dot)})
        for hint, value in ((dot, dot3(1, 2)), (line, line(dot3(1, 2)))):
            with pytest.raises(ArgumentsError, match="Dot3 would be read as Dot - at"):
                round_trip(hint, value)


def test_arguments_are_stored_by_name() -> None:
    """Positions do not matter in the row: it is readable, and survives a reordering of parameters."""

    def send(user: int, text: str, *, copies: int = 1) -> None: ...

    arguments = Arguments(send, skip_first=False)
    assert json.loads(arguments.encode((1, "hi"), {"copies": 2})) == {"user": 1, "text": "hi", "copies": 2}


def test_context_is_not_an_argument() -> None:
    """The context is left out."""

    def send(ctx: object, user: int) -> None: ...

    arguments = Arguments(send, skip_first=True)
    assert arguments.encode((1,), {}) == '{"user":1}'


_text = st.text(st.characters(exclude_categories=["Cs"]))
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.slow
@given(_json)
def test_any_json_value_survives(value: object) -> None:
    """Property: every JSON value is read back unchanged."""
    assert round_trip(Any, value) == value


# Refused


@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (int, "1", "Expected `int`, got `str`"),
        (int, True, "Expected `int`, got `bool`"),
        (float, float("nan"), "nan cannot be stored as JSON"),
        (Any, {"a": [float("inf")]}, "inf cannot be stored as JSON"),
        pytest.param(Any, object(), "object cannot be stored as JSON", id="object"),
        (Any, "\ud800", "surrogates"),
        (UUID, "not-a-uuid", "Invalid UUID"),
        (User, {"tags": []}, "missing required field `id`"),
        (Colour, "blue", "Invalid enum value - at `$.value`"),
        (Model, {"nome": "x"}, "Model does not fit: Name: missing, nome: extra_forbidden - at `$.value`"),
        (Masked, Masked(password=SecretStr("x")), "Masked is not equal after a round trip through JSON"),
        (Hidden, Hidden(password="x"), "Hidden is not equal after a round trip through JSON"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "Expected `int` >= 1"),
    ],
    ids=str,
)
def test_unfit_arguments_are_refused_at_the_enqueue(hint: Any, value: object, why: str) -> None:
    """Wrong types and values that JSON cannot hold raise ArgumentsError, which says what to pass instead."""
    with pytest.raises(ArgumentsError, match="Task function: ") as caught:
        round_trip(hint, value)
    assert why in str(caught.value)
    assert "Pass what the function's signature asks for" in caught.value.remedy


SECRET = "hunter2"


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    name: str


UNFIT = [
    (int, SECRET),
    (UUID, SECRET),
    (Decimal, SECRET),
    (datetime, SECRET),
    (timedelta, SECRET),
    (bytes, SECRET),
    (Colour, SECRET),
    (Colour, f"{SECRET} - at `$.value` {SECRET}\n{SECRET}"),
    (list[Colour], [SECRET]),
    (dict[Colour, int], {SECRET: 1}),
    (dict[str, int], {SECRET: "x"}),
    (Literal["a"], SECRET),
    (Cat | Dog, {"type": SECRET, "name": "x"}),
    (Annotated[str, msgspec.Meta(pattern="^a$")], SECRET),
    (Model, {"nome": SECRET}),
    (list[Model], [{"Name": "x", "more": SECRET}]),
    (Strict, {"id": SECRET}),
]


def everything_shown(error: BaseException | None) -> str:
    """Everything that an error could show, with its causes and contexts."""
    return (
        ""
        if error is None
        else f"{error!r} {error} {everything_shown(error.__cause__)} {everything_shown(error.__context__)}"
    )


@pytest.mark.parametrize(("hint", "value"), UNFIT, ids=str)
def test_errors_quote_no_values(hint: Any, value: object) -> None:
    """Neither the error nor its causes show the passed or stored values: logs and ledger keep errors."""
    arguments = Arguments(typed_as(hint), skip_first=False)
    with pytest.raises(ArgumentsError) as enqueued:
        arguments.encode((value,), {})
    with pytest.raises(ArgumentsError) as stored:
        arguments.decode(json.dumps({"value": value}))
    for caught in (enqueued, stored):
        assert "`$.value" in str(caught.value), "the error names the place"
        assert SECRET not in everything_shown(caught.value)


def test_result_of_a_model_is_what_it_dumps() -> None:
    """A result is for people and never read back: masked secrets stay masked, computed fields are shown."""
    assert encode_json(Masked(password=SecretStr("x"))) == b'{"password":"**********"}'
    assert encode_json(Model(Name="x")) == b'{"name":"x","length":1}'


@pytest.mark.parametrize(
    "value", [Masked(password=SecretStr(SECRET)), Hidden(password=SECRET)], ids=["masked", "hidden"]
)
def test_models_that_would_change_are_refused_without_their_values(value: object) -> None:
    """Secrets dump as stars, excluded fields not at all: refused at the enqueue, without the value."""
    with pytest.raises(ArgumentsError, match="is not equal after a round trip") as caught:
        round_trip(type(value), value)
    assert SECRET not in everything_shown(caught.value)


def test_failures_of_a_model_are_reported_by_place_and_rule() -> None:
    """A stored model that no longer fits is reported with pydantic's place and rule."""
    arguments = Arguments(typed_as(Strict), skip_first=False)
    with pytest.raises(
        ArgumentsError, match=r"Strict does not fit: id: uuid_parsing, pair\.0: int_type - at `\$.value`"
    ):
        arguments.decode('{"value": {"id": "x", "pair": ["1", "a"]}}')


# Classes: the worker reads by the annotation


@dataclass(frozen=True)
class Point:
    x: int


@dataclass(frozen=True)
class Point3(Point):
    z: int = 0


@dataclass
class Line:
    points: list[Point]
    label: Point | None = None


@dataclass(eq=False)
class Unequal:
    x: int
    inner: Point | None = None


class Path3(TypedDict):
    start: Point


@dataclass(eq=False)
class Careless:
    x: int

    def __eq__(self, other: object) -> bool:
        return bool(self.x == other.x)  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Event:
    pass


@dataclass
class Opened(Event):
    door: int


class Spot(NamedTuple):
    point: Point
    size: int = 1


class Box(msgspec.Struct):
    inner: Any = None


class Crate(Box):
    size: int = 0


class Shelf(msgspec.Struct):
    model: Strict


class Stricter(Strict):
    more: int = 1


class Kitten(msgspec.Struct, tag="kitten", frozen=True):
    name: str


class Puppy(msgspec.Struct, tag="puppy", frozen=True):
    name: str


@pytest.mark.parametrize(
    ("hint", "value", "classes"),
    [
        (Point, Point3(1, 2), "Point3 would be read as Point"),
        (Annotated[Point, "noted"], Point3(1, 2), "Point3 would be read as Point"),
        (Point | None, Point3(1, 2), "Point3 would be read as Point"),
        (list[Point], [Point(1), Point3(1, 2)], "Point3 would be read as Point"),
        (tuple[int, Point], (1, Point3(1, 2)), "Point3 would be read as Point"),
        (set[Point], {Point(1), Point3(1, 2)}, "Point3 would be read as Point"),
        (dict[Colour, list[Point]], {Colour.RED: [Point3(1, 2)]}, "Point3 would be read as Point"),
        (Line, Line([Point3(1, 2)]), "Point3 would be read as Point"),
        (Unequal, Unequal(1, Point3(1, 2)), "Point3 would be read as Point"),
        (Path3, {"start": Point3(1, 2), "unknown": 1}, "Point3 would be read as Point"),
        (Box, Crate(1), "Crate would be read as Box"),
        (Strict, Stricter(), "Stricter would be read as Strict"),
        (list[Strict], [Stricter()], "Stricter would be read as Strict"),
        (Shelf, Shelf(Stricter()), "Stricter would be read as Strict"),
        (Event, Opened(1), "Opened would be read as Event"),
        (Point, Unequal(1), "Unequal would be read as Point"),
    ],
    ids=str,
)
def test_objects_of_other_classes_are_refused(hint: Any, value: object, classes: str) -> None:
    """An object of another class, such as a subclass, would lose its additional fields."""
    with pytest.raises(ArgumentsError) as caught:
        round_trip(hint, value)
    assert f"{classes} - at `$.value`" in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value", "read"),
    [
        (Point, {"x": 1}, Point(1)),
        (Strict, {}, Strict()),
        (list[Point], (Point(1), {"x": 2}), [Point(1), Point(2)]),
        (Any, [Point3(1, 2)], [{"x": 1, "z": 2}]),
        (dict[str, int], Point3(1, 2), {"x": 1, "z": 2}),
        (Box, Box(Point3(1, 2)), Box({"x": 1, "z": 2})),
        (set[Kitten | Puppy], [Kitten("a"), Puppy("b"), Kitten("c")], {Kitten("a"), Puppy("b"), Kitten("c")}),
        (set[Point], [], set()),
        (dict[UUID, Point], {str(UUID(int=5)): Point(1)}, {UUID(int=5): Point(1)}),
        (list[Careless], [{"x": 1}], [Careless(1)]),
        (Spot, [Point(1)], Spot(Point(1))),
    ],
)
def test_dicts_stand_for_objects(hint: Any, value: object, read: object) -> None:
    """A dict may stand for an object; without an annotated class an object becomes a dict.

    Nothing is lost.
    """
    assert round_trip(hint, value) == read


def test_objects_without_equality_are_checked_by_their_class() -> None:
    """Objects that equal only themselves are accepted too."""
    read = round_trip(list[Unequal], [Unequal(1, Point(2))])
    assert [vars(item) for item in read] == [{"x": 1, "inner": Point(2)}]  # type: ignore[attr-defined]


def test_open_file_is_refused(tmp_path: Path) -> None:
    """An open file has no meaning in another process."""
    with (tmp_path / "file").open("w") as file, pytest.raises(ArgumentsError, match="TextIOWrapper cannot be stored"):
        round_trip(Any, file)


def test_endless_value_is_refused() -> None:
    """A list that contains itself has no JSON."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ArgumentsError):
        round_trip(Any, endless)


def test_big_arguments_are_refused() -> None:
    """More than the limit is refused, with both numbers and an alternative."""
    arguments = Arguments(typed_as(str), skip_first=False)
    with pytest.raises(ArgumentsError, match="more than the limit of 1,000,000") as caught:
        arguments.encode(("x" * 10_000_000,), {})
    assert "10,000,0" in str(caught.value)
    assert "pass a reference" in caught.value.remedy
    assert len(str(caught.value)) < 400, "the arguments themselves are never shown"


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'user'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"usr": 2}, "got an unexpected keyword argument 'usr'"),
        ((1,), {"user": 2}, "multiple values for argument 'user'"),
    ],
)
def test_wrong_names_are_refused(args: tuple[int, ...], kwargs: dict[str, int], why: str) -> None:
    """A call that Python would refuse is refused at the enqueue."""

    def send(user: int, copies: int = 1) -> None: ...

    with pytest.raises(ArgumentsError, match="Task send") as caught:
        Arguments(send, skip_first=False).encode(args, kwargs)
    assert why in str(caught.value)


@pytest.mark.parametrize("text", ['{"user":"x"}', "{}", '{"user":1,"new":2}', "[]", "", "nonsense"])
def test_stored_arguments_that_do_not_fit_are_named(text: str) -> None:
    """A row written by another version of the code raises ArgumentsError, never another error."""

    def send(user: int) -> None: ...

    with pytest.raises(ArgumentsError, match="the stored arguments do not fit"):
        Arguments(send, skip_first=False).decode(text)


def test_parameters_without_a_name_are_refused() -> None:
    """*args, **kwargs and positional-only parameters have no name in JSON."""

    def starred(*values: int) -> None: ...

    def keywords(**values: int) -> None: ...

    def positional(value: int, /) -> None: ...

    for function in (starred, keywords, positional):
        with pytest.raises(DeclarationError, match="cannot be passed by name"):
            Arguments(function, skip_first=False)


def test_unknown_annotation_is_named() -> None:
    """An annotation that exists only for type checkers is named, with what to do."""

    def send(user: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point

    with pytest.raises(DeclarationError, match="the annotation 'Missing' is unknown at run time"):
        Arguments(send, skip_first=False)


def test_ambiguous_union_is_refused_at_the_decorator() -> None:
    """A union of two objects cannot be read back without a tag: the declaration raises."""
    with pytest.raises(DeclarationError, match="Task function: "):
        Arguments(typed_as(User | Address), skip_first=False)
