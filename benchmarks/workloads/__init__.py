"""Which optimizer? Seven small workloads, and one protocol for all optimizers.

`python -m benchmarks.workloads` runs what has no result yet, and with `--write` writes
the page. Results are one file for each workload in `results/`, one line for each
optimizer.
"""
