"""``python -m segunc``."""

from __future__ import annotations

import os
import sys

# Run as a file, which is how Lightning starts further processes of a training, Python looks for
# modules in the folder of the package first: its `lightning` would stand for the library.
FOLDER = os.path.dirname(os.path.abspath(__file__))
if os.path.abspath(sys.path[0]) == FOLDER:
    sys.path[0] = os.path.dirname(FOLDER)

from segunc.cli.main import entry  # noqa: E402

if __name__ == "__main__":
    entry()
