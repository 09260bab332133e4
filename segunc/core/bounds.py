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
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return low and (self.most is None or value <= self.most)

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
    """Base of frozen dataclasses whose fields are typed with the names above, alone, in a list or beside None, or as
    Literals. InputError where a value is out of its range. ``section`` is their key in a configuration file."""

    section: ClassVar[str] = "settings"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self), include_extras=True)
        for field in fields(self):
            _check(field.name, getattr(self, field.name), hints[field.name])


def _check(name: str, value: Any, hint: Any) -> None:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and value is not None:
        for each in inner:
            _check(name, value, each)
    elif origin is list:
        for item in value:
            _check(name, item, inner[0])
    elif origin is Literal and value not in inner:
        raise InputError(f"{name} {value}", f"one of {', '.join(map(str, inner))}")
    elif origin is Annotated:
        for bound in inner[1:]:
            if isinstance(bound, Bound) and not bound.holds(value):
                raise InputError(f"{name} {value}", str(bound), "repair the configuration")
