"""What training on several devices costs: `python -m benchmarks.scaling`."""
