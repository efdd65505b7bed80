"""One context of MLIR for many programs, if JAX makes one for each.

JAX 0.10 does so, and fills each with all dialects that there are. For a small program,
that is most of lowering; it is a seventh of the time of tests of optimizers, and most of
the memory that a program keeps. JAX 0.12 itself has one for about ten programs. There, to
share more would save a hundredth, so this does nothing.
"""

import threading


# Constants and types stay in a context for as long as there is one.
PROGRAMS = 300


def share() -> None:
    """From now on, each thread lowers `PROGRAMS` of them in one context."""
    # This is inside of JAX. It only saves time, so tests do without it in a release that
    # has no such function, or another one.
    try:
        from jax._src.interpreters import mlir

        make = mlir.make_ir_context
        is_shared = make() is make()
    except Exception:
        return
    if is_shared:
        return
    here = threading.local()

    def shared():
        left = getattr(here, "left", 0)
        if left == 0:
            here.context, left = make(), PROGRAMS
        here.left = left - 1
        return here.context

    mlir.make_ir_context = shared
