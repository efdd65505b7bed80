"""The cost of optimizers for matrices, next to AdamW: `python -m benchmarks.matrices`.

It measures the state, the time of a step and its temporary memory, for matrices of two
sizes.
"""
