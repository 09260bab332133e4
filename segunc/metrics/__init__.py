"""Counts and the numbers that follow from them: pure functions of arrays."""
