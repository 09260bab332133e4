"""What a written page hands to the browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def table(index: Path, name: str) -> dict[str, Any]:
    """What a script of data hands to the page."""
    text = (index.parent / "data" / f"{name}.js").read_text(encoding="utf-8")
    found = re.fullmatch(rf'segunc\.receive\("{name}", JSON\.parse\((".*")\)\);\n', text)
    assert found is not None
    content: dict[str, Any] = json.loads(json.loads(found[1]))
    return content


def notices(index: Path) -> str:
    return "\n".join(table(index, "page")["notices"])
