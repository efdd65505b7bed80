"""What state and parameters in fewer bytes cost: `python -m benchmarks.storage`.

Bytes per parameter, the time of a step and the final loss go into the documentation, as a
table and a picture.
"""
