"""Maps on disk: encodings, the folder with its one door, writer, reader, manifest, shards,
statistics, and the pipeline.
"""
