"""A learning rate for each optimizer and problem, found by `--tune` on a coarse grid.

(`python -m benchmarks.training --tune` looks at eqopt's loss alone.)
"""

RATES = {
    "SGD": (1.0, 0.001, 3.2, 0.1),
    "Adam": (0.03, 0.03, 0.1, 0.003),
    "AdamW": (0.03, 0.03, 0.1, 0.003),
    "Lion": (0.03, 0.003, 0.03, 0.001),
}
