"""The type checkers of a user's editor."""

import shutil
from pathlib import Path

NODE_TOOLS = Path(__file__).parents[2] / "tools" / "page" / "node_modules" / ".bin"
NO_PYRIGHT = "pyright is not installed: npm ci --prefix tools/page"


def find_pyright() -> str | None:
    """Return the path of pyright; None where it is not installed.

    Only the executable of Node.js is taken: that of PyPI downloads pyright when it runs.
    """
    own = shutil.which("pyright", path=str(NODE_TOOLS))
    if own is not None and shutil.which("node"):
        return own
    return None
