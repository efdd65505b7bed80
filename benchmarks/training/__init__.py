"""Does every optimizer train as well as in Optax? `python -m benchmarks.training`.

Each optimizer trains on four problems, with the same learning rate in both libraries. The
results go into the documentation as a table and a picture.
"""
