"""Errors of constructors that type checks, which are on in these tests, find first."""

import contextlib

import jaxtyping


@contextlib.contextmanager
def unchecked():
    """Turns off type checks of arguments, as users may."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
