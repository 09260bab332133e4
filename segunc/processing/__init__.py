"""From a frame to its maps: sampling, as a whole or in tiles."""
