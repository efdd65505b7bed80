"""L-BFGS next to Optax's and SciPy's: `python -m benchmarks.minimise`.

Each minimises the same functions from the same start until the gradient is as small. What
counts is how often the function is evaluated. The results go into the documentation, as a
table and a picture.
"""
