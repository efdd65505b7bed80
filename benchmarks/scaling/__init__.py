"""The cost of training on several devices: `python -m benchmarks.scaling`."""
