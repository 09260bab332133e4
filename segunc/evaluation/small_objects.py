"""The small labelled objects that a result counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from segunc.metrics.objects import SMALLEST_OBJECT, SmallObjects


def small_objects_of(result: Mapping[str, Any]) -> SmallObjects:
    """Return the small objects of a result; none of a result that does not count them.

    Args:
        result: the content of metrics.json.
    """
    counts = result["counts"]
    return SmallObjects(
        objects=counts.get("objects", 0),
        small=counts.get("small_objects", 0),
        frames=counts.get("small_object_frames", 0),
        smallest=result.get("run", {}).get("smallest_object", SMALLEST_OBJECT),
    )
