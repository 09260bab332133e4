"""Exchange with the public benchmarks."""
