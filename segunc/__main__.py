"""``python -m segunc``."""

from segunc.cli import entry

if __name__ == "__main__":
    entry()
