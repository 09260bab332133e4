"""Figures for reports and print: one look, fixed ranges, legible at a column width of 8 cm.

``style`` holds the look and writes files; ``lines`` makes curves of the metrics' results; every other file holds the
figures of one subject. The room knows results and arrays, never networks or data sets, and uses no state of pyplot.
"""
