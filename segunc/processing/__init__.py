"""What one frame goes through between its picture and its maps: tiles, sampling, smoothing along the video."""
