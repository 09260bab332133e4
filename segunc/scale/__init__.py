"""The adapter to the engine that spreads work over many machines."""
