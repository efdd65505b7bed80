"""Which optimizer? Seven small workloads, and one protocol for all optimizers.

`python -m benchmarks.workloads` makes all runs that have no result yet. With `--write`,
it writes the page. `results/` has a file for each workload, with a line for each
optimizer.
"""
