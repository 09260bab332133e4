"""Counts and the numbers that follow from them: pure functions of arrays that know no map, model or
file.
"""
