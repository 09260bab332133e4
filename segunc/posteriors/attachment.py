"""What is fitted on a finished model and stored beside it as a small JSON file, bound to the model by hashes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_json

FORMAT = 1
BOUND_TO = {"base_sha256": "base network", "posterior_sha256": "posterior"}
"""Fields that are hashes, and of what."""


@dataclass(frozen=True)
class Attachment:
    """A record in a model folder; beside another model it is refused.

    Attributes:
        file: its name.
        what: it is, for messages.
    """

    file: ClassVar[str]
    what: ClassVar[str]

    def write(self, folder: Path) -> None:
        """Write the record into a model folder."""
        write_json(folder / self.file, {"format": FORMAT, **asdict(self)})

    @classmethod
    def content(cls, folder: Path, **hashes: str | None) -> dict[str, Any] | None:
        """The fields of the record in the folder of a model with these hashes, None where there is none.

        Raises:
            InputError: fields that lack or are too many, or the record was fitted on another model.
        """
        path = folder / cls.file
        if not path.exists():
            return None
        content = read_json(path, cls.what)
        if content.pop("format", None) != FORMAT:
            raise InputError(f"{path} is not of format {FORMAT}", "a file that this version wrote", "fit it again")
        if differing := {field.name for field in fields(cls)} ^ set(content):
            raise InputError(
                f"{path} lacks or has too much: {', '.join(sorted(differing))}",
                f"the fields of {cls.what}",
                "fit it again",
            )
        for name, actual in hashes.items():
            if content[name] != actual:
                raise InputError(
                    f"{path} was fitted on a {BOUND_TO[name]} with the hash {str(content[name])[:12]}, the one here has "
                    f"{str(actual)[:12]}",
                    "a file beside the model that it was fitted on",
                    "fit it again on this model, or remove the file",
                )
        return content


def are_finite(values: Iterable[object]) -> bool:
    """Whether all values from a JSON file are finite numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
