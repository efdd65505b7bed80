"""The cost of optimizers for matrices, next to AdamW: `python -m benchmarks.matrices`.

It measures the state, the time of a step and its temporary memory, for matrices of two
sizes.
"""

import os


# After each call, the threads of LAPACK keep a core busy for a while, in which XLA waits.
# This has to be set before JAX loads LAPACK.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
