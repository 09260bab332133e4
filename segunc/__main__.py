"""``python -m segunc``."""

from __future__ import annotations

from segunc.cli.main import entry

if __name__ == "__main__":
    entry()
