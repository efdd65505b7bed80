"""Compares L-BFGS with Optax and SciPy: `python -m benchmarks.minimise`.

All three minimize the same functions from the same start until the gradient is equally
small. The measure is the number of evaluations of the function. The results go into the
documentation as a table and a picture.
"""
