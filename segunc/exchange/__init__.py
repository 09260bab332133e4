"""Exchange with the public benchmarks and with viewers."""
