"""Tables of what a user can name, to which other packages can add.

A table knows its own entries by where they stand (``module:name``), so that nothing is imported
before it is asked for. Others come from :meth:`Registry.register`, or from an installed package
that declares an entry point in the table's group::

    [project.entry-points."segunc.posteriors"]
    my-posterior = "my_package.my_file:MyPosterior"
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from segunc.core.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names and their entries, in the order of registration.

    Args:
        kind: what the entries are, in messages.
        group: that of the entry points of other packages.
        own: for each name the entry or ``module:name``.
        baselines: names that come by entry points of this package.
    """

    def __init__(
        self, kind: str, group: str, own: Mapping[str, T | str], baselines: Iterable[str] = ()
    ) -> None:
        self.kind = kind
        self.group = group
        self._entries: dict[str, Any] = {**own, **dict.fromkeys(baselines)}
        self._looked_outside = False

    def register(self, name: str, entry: T) -> T:
        """Add an entry under a new name, and return it.

        Raises:
            InputError: another entry has the name.
        """
        if name in self._entries and self._entries[name] is not entry:
            raise InputError(
                f"there is a {self.kind} '{name}' already", hint="rename the second one"
            )
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        """Return the entry of a name.

        Raises:
            InputError: nothing is registered under it, or it needs a package that is not installed.
        """
        if name not in self:
            raise InputError(
                f"there is no {self.kind} '{name}'", hint=f"choose one of {', '.join(self)}"
            )
        if self._entries[name] is None:
            self._look_outside()
        entry = self._entries[name]
        if entry is None:
            raise InputError(
                f"the entry point of {self.kind} '{name}' was missing when segunc was installed",
                hint="pip install -e .",
            )
        if isinstance(entry, str):
            entry = self._imported(name, entry)
            self._entries[name] = entry
        return entry  # type: ignore[no-any-return]

    def _imported(self, name: str, location: str) -> Any:
        """Return the entry of a name that stands at ``module:name``."""
        module, _, attribute = location.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{self.kind} '{name}' needs a package that is not installed ({error})",
                hint=f"pip install {error.name}",
            ) from error

    def get(self, name: str, default: Any = None) -> Any:
        """Return the entry of a name; a mapping's own ``get`` would look for a KeyError."""
        return self[name] if name in self else default  # noqa: SIM401

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._look_outside()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._look_outside()
        return iter(self._entries)

    def __len__(self) -> int:
        self._look_outside()
        return len(self._entries)

    def _look_outside(self) -> None:
        """Take in the entry points of installed packages, once.

        They cannot replace an entry of ours.
        """
        if self._looked_outside:
            return
        self._looked_outside = True
        for point in entry_points(group=self.group):
            if self._entries.get(point.name) is None:
                self._entries[point.name] = point.value
