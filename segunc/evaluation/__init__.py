"""Numbers of maps and models: counted frame by frame, resampled, compared."""
