"""The base class of public modules: what their constructors accept, and errors of it."""

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from .._errors import InputError, name_error
from .._typecheck import checked, checked_methods, needs_check
from .._wrong_calls import written
from .checks import check_fields
from .fields import types_of_choices


if TYPE_CHECKING:
    from equinox import Module as Module

    Explained = type
else:

    class Explained(type):
        """The metaclass of classes whose arguments may have other names elsewhere."""

        def __call__(cls, *args, **kwargs):
            __tracebackhide__ = True
            names = _names(cls)
            try:
                for name in kwargs:
                    if names is not None and name not in names:
                        from .._names import unknown_argument  # only for an error

                        advice = unknown_argument(name, names)
                        raise InputError(f"no argument `{name}`. {advice}")
                return super().__call__(*args, **kwargs)
            except Exception as error:
                name_error(error, cls.__name__)
                raise

        @property
        def __signature__(cls):
            # Otherwise it would be the signature of `__call__`.
            signature = inspect.signature(cls.__init__)
            fields = getattr(cls, "__dataclass_fields__", {})

            def shown(x):
                if x.annotation is x.empty or x.kind is x.VAR_POSITIONAL:
                    return x
                # Equinox writes `Any` for a field with a converter.
                is_converted = x.annotation is Any and x.name in fields
                annotation = fields[x.name].type if is_converted else x.annotation
                return x.replace(annotation=_Text(written(annotation)))

            parameters = [*map(shown, signature.parameters.values())]
            return signature.replace(parameters=parameters[1:])

    class _Text(str):
        """An annotation that is shown without quotes."""

        __repr__ = str.__str__

    class _ExplainedModule(Explained, type(eqx.Module)):
        def __new__(cls, name, bases, namespace, /, **options):
            if not namespace["__module__"].startswith("eqopt."):
                return super().__new__(cls, name, bases, namespace, **options)
            namespace = checked_methods(namespace)
            made = super().__new__(cls, name, bases, namespace, **options)
            if needs_check(made.__init__):
                made.__init__.__annotations__ |= types_of_choices(made)
                made.__init__ = checked(made.__init__)
            return made

    class Module(eqx.Module, metaclass=_ExplainedModule):
        """An `eqx.Module` that checks its fields, and names of other libraries."""

        # Equinox calls this last. A `__check_init__` of a subclass that relies on the
        # values of the fields calls `check_fields` first.
        def __check_init__(self) -> None:
            check_fields(self)

        def __pdoc__(self, **options: Any) -> Any:
            # Equinox prints with this library, which calls the method. It hides a default
            # only if it is the same object: not in a copy, and not if a user writes it.
            import wadler_lindig as wl

            hides, values = options["hide_defaults"], vars(self)
            own = [x for x in dataclasses.fields(self) if x.repr and x.name in values]
            is_hidden = lambda x: hides and _same(values[x.name], x.default)
            shown = [(x.name, values[x.name]) for x in own if not is_hidden(x)]
            return wl.bracketed(
                begin=wl.TextDoc(f"{type(self).__name__}("),
                docs=wl.named_objs(shown, **options),
                sep=wl.comma,
                end=wl.TextDoc(")"),
                indent=options["indent"],
            )


@functools.cache
def _names(cls: type) -> Sequence[str] | None:
    """The names of the arguments of a class; `None` if it takes any name."""
    parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]


def _same(value: Any, default: Any) -> bool:
    """Whether it is an equal Python value, which no array is."""
    is_array = lambda x: isinstance(x, jax.Array | np.ndarray)
    has_arrays = any(map(is_array, jtu.tree_leaves(value)))
    return type(value) is type(default) and not has_arrays and value == default
