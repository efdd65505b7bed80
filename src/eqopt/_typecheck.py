"""Run-time type checks: an import hook applies `checked` to the library's functions.

beartype checks the types; jaxtyping checks the shapes and writes the messages.
jaxtyping also has such a hook, but it builds two functions for each checked function at
import, and checks arguments twice in each call. With it, `from eqopt import *` took 1.6
times as long, and tracing a step in a fresh process 1.5 times. Here, nothing is built
until a function is called.
"""

import ast
import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import jaxtyping
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation


if TYPE_CHECKING:
    _Function = TypeVar("_Function", bound=Callable)

    def no_type_check(fn: _Function) -> _Function:
        """Excludes `fn` from run-time checks: it is called at least once per leaf."""
        return fn

else:
    from typing import no_type_check as no_type_check


def checked(fn: Callable) -> Callable:
    """A function with checked arguments and result, or a class with checked fields."""
    if isinstance(fn, type):
        # Checks the constructor of a dataclass, unless it or an inherited one is
        # checked already.
        if dataclasses.is_dataclass(fn) and not hasattr(fn.__init__, "_is_checked"):
            setattr(fn, "__init__", checked(fn.__init__))  # noqa: B010
        return fn

    checks = None

    @functools.wraps(fn)
    def check(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checks
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        if checks is None:
            checks = beartype(fn)  # takes a millisecond: few functions are ever called
        try:
            with jaxtyping.jaxtyped("context"):
                return checks(*args, **kwargs)
        except BeartypeCallHintViolation:
            # jaxtyping's message names the argument and the sizes of the axes so far.
            jaxtyping.jaxtyped(fn, typechecker=beartype)(*args, **kwargs)
            raise

    setattr(check, "_is_checked", True)  # noqa: B010
    return check


def check_package(name: str) -> None:
    """Checks every module of a package that is imported from now on."""
    sys.meta_path.insert(0, _Finder(name))


class _Finder:
    """Finds the same modules as `PathFinder`, and loads them with a `_Loader`."""

    def __init__(self, package: str):
        self.within = package + "."

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if not fullname.startswith(self.within):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None  # a package in a zip file, for example, works unchecked
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    """Compiles a module with `checked` at its functions and classes."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = _Decorating().visit(ast.parse(decode_source(data), path))
        first = 0 if ast.get_docstring(tree) is None else 1  # the docstring stays first
        names = [ast.alias("checked", "_checked_")]
        tree.body.insert(first, ast.ImportFrom(__name__, names, level=0))
        ast.fix_missing_locations(tree)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    # pip compiles modules without checks, so modules compiled here get another file
    # name.
    def get_data(self, path: str) -> bytes:
        return super().get_data(_own(path))

    def set_data(self, path: str, data: Any, **mode: Any) -> None:
        super().set_data(_own(path), data, **mode)


def _own(path: str) -> str:
    return path.removesuffix(".pyc") + ".checked.pyc" if path.endswith(".pyc") else path


class _Decorating(ast.NodeTransformer):
    """Puts `@_checked_` next to each public function, and first above each class.

    It is next to a function, because other decorators hide the annotations. It is above
    a class, because it needs the result of `@dataclass`. Nothing below `@no_type_check`
    is checked, and nothing in a private function.
    """

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self._decorated(node, 0)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if _is_inner(node.name):
            return node
        return self._decorated(node, len(node.decorator_list))

    def _decorated(self, node: Any, position: int) -> Any:
        if any(map(_is_no_type_check, node.decorator_list)):
            return node
        if isinstance(node, ast.ClassDef) or _is_annotated(node):
            where = ast.copy_location(ast.Name("_checked_", ast.Load()), node)
            node.decorator_list.insert(position, where)
        return self.generic_visit(node)


def _is_inner(name: str) -> bool:
    # A transformation calls its own `leafwise`, and has checked the arguments.
    is_private = name.startswith("_") and not name.endswith("__")
    return is_private or name == "leafwise"


def _is_annotated(node: ast.FunctionDef) -> bool:
    arguments = [a for a in ast.walk(node.args) if isinstance(a, ast.arg)]
    return node.returns is not None or any(a.annotation for a in arguments)


def _is_no_type_check(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "no_type_check"
