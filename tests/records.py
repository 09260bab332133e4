"""Records of model folders that are changed by hand."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any


def change_record(path: Path, without: Collection[str] = (), **changes: Any) -> dict[str, Any]:
    """Change what a record says and leave it without a hash, as earlier versions wrote records; other links to the file keep theirs."""
    content = {**json.loads(path.read_text()), "format": 1, **changes}
    content = {name: value for name, value in content.items() if name not in {"record_sha256", *without}}
    path.unlink()
    path.write_text(json.dumps(content))
    return content
