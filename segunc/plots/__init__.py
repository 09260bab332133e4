"""Figures for reports and print: one look, fixed ranges, legible at a column width of 8 cm.

``charts`` holds the look and draws lines and points of anything, ``evaluation`` every figure of an evaluation. The room knows
results and arrays, never networks or data sets, and uses no state of pyplot.
"""
