"""Which tests need a package that `pip install '.[tests]'` does not install."""

import functools
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any


_AT_ONCE = re.compile(r'^(?:\w+ = )?pytest\.importorskip\("(\w+)', re.MULTILINE)


def needs_extras(item: Any) -> bool:
    """Whether the test, a fixture of it, or the module is skipped without a package."""
    return bool(_at_once(item.path)) or any(map(_may_skip, _functions(item)))


# Only the environment with the older release of JAX has these, and what needs torch.
COMPARED = {"haliax", "torch", "torch.optim"}


def needs_compared(item: Any) -> bool:
    """Whether the package is for comparison, of the extra `compare`."""
    constants = lambda fn: inspect.unwrap(fn).__code__.co_consts
    return bool(COMPARED & _at_once(item.path)) or any(
        _may_skip(fn) and COMPARED & {*constants(fn)} for fn in _functions(item)
    )


def _functions(item: Any) -> Iterator[Any]:
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (definition.func for definition in definitions)


def _may_skip(fn: Any) -> bool:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code is not None and "importorskip" in code.co_names


@functools.cache
def _at_once(path: pathlib.Path) -> frozenset[str]:
    """The packages without which the module is skipped."""
    return frozenset(_AT_ONCE.findall(path.read_text(encoding="utf-8")))
