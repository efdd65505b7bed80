"""The base class of public modules: what their constructors accept, and errors of it."""

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx

from .._errors import InputError
from .._typecheck import checked, checked_methods, needs_check
from .annotations import without_bounds
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
            for name in kwargs:
                if names is not None and name not in names:
                    from .._names import unknown_argument  # imported only for an error

                    advice = unknown_argument(name, names)
                    raise InputError(cls.__name__, f"no argument `{name}`. {advice}")
            return super().__call__(*args, **kwargs)

        @property
        def __signature__(cls):
            # Otherwise it would be the signature of `__call__`.
            signature = inspect.signature(cls.__init__)
            # Not what its converter accepts, or `Any`.
            fields = getattr(cls, "__dataclass_fields__", {})
            choices = types_of_choices(cls) if fields else {}
            types = {
                name: fields[name].type
                if x.annotation in (Any, choices.get(name, Any))
                and name in fields
                and x.kind != x.VAR_POSITIONAL
                else x.annotation
                for name, x in signature.parameters.items()
            }
            parameters = [
                x.replace(annotation=without_bounds(types[name]))
                for name, x in signature.parameters.items()
            ]
            return signature.replace(parameters=parameters[1:])

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


@functools.cache
def _names(cls: type) -> Sequence[str] | None:
    """The names of the arguments of a class; `None` if it takes any name."""
    parameters = [*inspect.signature(cls.__init__).parameters.values()][1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
