"""Errors that a type checker finds first, where there is one, as in these tests."""

import contextlib

import jaxtyping


@contextlib.contextmanager
def unchecked():
    """Without the types of arguments, as for users."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
