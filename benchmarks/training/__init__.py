"""Does every optimizer train, and as well as Optax's? `python -m benchmarks.training`.

Each trains on four problems with the same learning rate in both libraries. The results go
into the documentation, as a table and a picture.
"""
