"""What optimizers for matrices cost, beside AdamW: `python -m benchmarks.matrices`.

The state, the time of a step and its temporary memory, of matrices of two sizes.
"""
