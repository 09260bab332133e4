"""Maps on disk: frame sources, the encoding of scores, writers and readers, the manifest, resume."""
