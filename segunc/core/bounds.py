"""Settings whose numbers have bounds: dataclasses that check themselves, in Python and from a configuration file alike."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from segunc.core.errors import InputError


@dataclass(frozen=True)
class Bound:
    """A range of numbers: from ``least`` or above ``above``, up to ``most``."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )

    def __str__(self) -> str:
        low = f"of at least {self.least:g}" if self.above is None else f"above {self.above:g}"
        return f"a number {low}" + ("" if self.most is None else f" and at most {self.most:g}")


PositiveInt = Annotated[int, Bound(above=0)]
NonNegativeInt = Annotated[int, Bound(least=0)]
PositiveFloat = Annotated[float, Bound(above=0)]
NonNegativeFloat = Annotated[float, Bound(least=0)]
UnitInterval = Annotated[float, Bound(least=0, most=1)]


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses whose fields are typed with the names above, alone, in a list or beside None, or as Literals.

    Attributes:
        section: the key that they stand under in a configuration file.

    Raises:
        InputError: a value out of its range.
    """

    section: ClassVar[str] = "settings"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            _check(field.name, getattr(self, field.name), hints[field.name])


def _check(name: str, value: Any, hint: Any) -> None:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if value is not None:
            for inner in get_args(hint):
                if inner is not type(None):
                    _check(name, value, inner)
    elif origin is list:
        for item in value:
            _check(name, item, get_args(hint)[0])
    elif origin is Literal:
        if value not in get_args(hint):
            raise InputError(f"{name} {value}", f"one of {', '.join(map(str, get_args(hint)))}")
    elif origin is Annotated:
        for bound in get_args(hint)[1:]:
            if isinstance(bound, Bound) and not bound.holds(value):
                raise InputError(f"{name} {value}", str(bound), "repair the configuration")
