"""Training over slow links: `python -m benchmarks.links`."""
