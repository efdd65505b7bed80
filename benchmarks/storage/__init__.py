"""The cost of state and parameters in fewer bytes: `python -m benchmarks.storage`.

Bytes per parameter, the time of a step and the final loss go into the documentation as a
table and a picture.
"""
