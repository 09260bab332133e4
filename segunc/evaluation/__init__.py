"""From labelled frames to ``metrics.json``, and results side by side. A frame is counted by all
parts or by none; replicates keep counts by 12 bits of the key instead of 16, and their numbers are
moved by the difference that this makes over all frames.
"""
