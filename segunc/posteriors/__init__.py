"""One file a posterior: its state, its draws, its settings and how it is fitted."""
