"""Which tests need a package that `pip install '.[tests]'` does not install."""

import functools
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Any


_AT_ONCE = re.compile(r"^(\w+ = )?pytest\.importorskip\(", re.MULTILINE)


def needs_extras(item: Any) -> bool:
    """Whether the test, a fixture of it, or the module is skipped without a package."""
    return _is_module_skipped(item.path) or any(map(_may_skip, _functions(item)))


def _functions(item: Any) -> Iterator[Any]:
    yield item.function
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        yield from (definition.func for definition in definitions)


def _may_skip(fn: Any) -> bool:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code is not None and "importorskip" in code.co_names


@functools.cache
def _is_module_skipped(path: pathlib.Path) -> bool:
    return _AT_ONCE.search(path.read_text(encoding="utf-8")) is not None
