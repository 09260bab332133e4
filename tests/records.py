"""Records of model folders that are changed by hand."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from segunc.core.files import write_record


def change_record(path: Path, without: Collection[str] = (), **changes: Any) -> dict[str, Any]:
    """Change what a record says and seal it again, as a forger would; other links to the file keep theirs."""
    content = {**json.loads(path.read_text()), **changes}
    content = {name: value for name, value in content.items() if name not in {"record_sha256", *without}}
    path.unlink()
    write_record(path, content)
    return content
