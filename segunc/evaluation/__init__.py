"""From labelled frames to ``metrics.json``, and results side by side.

A frame is counted by all parts or by none, so scores are compared over the same pixels. Counts are whole numbers, so shards merge to the
bit. Replicates keep counts by 12 bits of the key instead of 16; their numbers are moved by the difference that this makes over all frames.
"""
