"""Maps on disk: encodings, the folder with its one door, writer, reader, manifest, shards, statistics, and the pipeline.

A frame's line in ``frames.jsonl`` is the commit; a run holds one byte a frame in memory. Shards are dealt round-robin, each with a log, a
manifest and a lock of its own; readers see their union in source order, with the bytes of a single run. A replaced input is noticed by a
hash of samples of its bytes, not by its date, so that copies stay valid.
"""
