"""Public names that are imported on first use (PEP 562).

Importing everything takes half a second, so users pay only for the rooms that they use.
The `__init__.pyi` next to a package's `__init__.py` is the only list of its public
names: type checkers, completion, the documentation and this module read it.
"""

import ast
import importlib
import pathlib
from collections.abc import Callable
from typing import Any

from ._typecheck import checked, needs_check


def attach_stub(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package with its stub next to `file`.

    **Arguments:**

    - `package`: the package's `__name__`.
    - `file`: its `__file__`; the stub has the same path with the suffix `.pyi`.
    """
    origins = _origins(ast.parse(pathlib.Path(file).with_suffix(".pyi").read_text()))

    def __getattr__(name: str) -> Any:
        if name not in origins:
            from ._names import missing  # imported only for an error

            raise AttributeError(missing(package, name))
        source, is_module = origins[name]
        module = importlib.import_module(source, package)
        if is_module:
            return module
        found = getattr(module, name)
        if needs_check(found):
            found = checked(found, f"{package}.{name}")
            setattr(module, name, found)  # it is the same function the next time
        return found

    names = sorted(origins)
    return __getattr__, lambda: names, names


def _origins(stub: ast.Module) -> dict[str, tuple[str, bool]]:
    """Maps each public name to its module, and to whether it is the module itself."""
    origins = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = node.module is None
                module = alias.name if whole else node.module
                origins[alias.name] = ("." * node.level + str(module), whole)
    return origins
