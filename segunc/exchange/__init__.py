"""Exchange with the public benchmarks: score maps in their formats, and their leaderboards."""
