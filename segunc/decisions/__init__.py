"""From a map to a decision: thresholds with a promise, the losses that they bound, and the methods
that make the promise.
"""
