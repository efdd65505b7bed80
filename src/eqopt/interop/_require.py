"""Checks that the library of a bridge is installed."""

import importlib.util


def require(package: str, room: str) -> None:
    """Raises an `ImportError` that says what to install if `package` is missing."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(
            f"{room} needs {package}, which is not installed. Install it with "
            f"`pip install {package}`.",
            name=package,
        )
