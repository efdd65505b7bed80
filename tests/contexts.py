"""Lets many programs share one context of MLIR, if JAX makes one for each program.

JAX 0.10 makes a new context for each program and loads all dialects into it. This takes
most of the time of lowering a small program, a seventh of the time of tests of
optimizers, and most of the memory that a program keeps. JAX 0.12 itself uses one
context for about ten programs. Sharing it among more would save a hundredth, so this
does nothing there.
"""

import threading


# Not all programs: a context keeps their constants and types for as long as it exists.
PROGRAMS = 300


def share() -> None:
    """From now on, each thread uses one context for `PROGRAMS` programs."""
    # This replaces an internal function of JAX. It only saves time, so the tests run
    # without it if a release lacks the function or has a different one.
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
