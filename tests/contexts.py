"""One context of MLIR for many programs.

JAX makes a context for each program that it lowers, and fills it with all dialects that
there are. For a small program that is half of lowering, a tenth of all that the tests
do, and most of the memory that a program keeps.
"""

import threading

from jax._src.interpreters import mlir


# Constants and types stay in a context for as long as there is one.
PROGRAMS = 300


def share() -> None:
    """From now on, each thread lowers `PROGRAMS` of them in one context.

    This is inside of JAX: a version that has no such function makes its own contexts.
    """
    make = getattr(mlir, "make_ir_context", None)
    if make is None:
        return
    here = threading.local()

    def shared():
        left = getattr(here, "left", 0)
        if left == 0:
            here.context, left = make(), PROGRAMS
        here.left = left - 1
        return here.context

    mlir.make_ir_context = shared
