"""Helpers that tests of several rooms import."""
