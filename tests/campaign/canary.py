"""A module that damaged configurations name; that it is imported is a failure."""


class Canary:
    """Takes no arguments."""
