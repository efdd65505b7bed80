"""What the docs need to know about eqopt that is not in its sources' plain text."""

import re
from collections.abc import Iterator
from typing import Any

import griffe


_DISPLAY = re.compile(r"^ *\$\$.+?\$\$", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(
    r'(^!!! abstract "One step"\n.*?)(^!!! example\n(?:\n| [^\n]*\n)+)',
    re.DOTALL | re.MULTILINE,
)


class EquinoxModules(griffe.Extension):
    """Lets griffe see an `eqx.Module` as its user does.

    - The fields of a Module are the parameters of its `__init__`, not members.
    - A method without a docstring has that of the method it implements.
    - `Any` is not shown: it says nothing.
    - A display formula need not stand between blank lines.
    - The example is shown before the equations.
    """

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for cls in _classes(pkg):
            if _is_module(cls):
                _inherit_docstrings(cls)
                if "__init__" not in cls.members:
                    _add_init(cls)
        for cls in _classes(pkg):
            if _is_module(cls):
                for field in _fields(cls):
                    cls.del_member(field.name)

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            text = _EXAMPLE.sub(r"\2\1", obj.docstring.value)
            obj.docstring.value = _DISPLAY.sub(r"\n\n\g<0>\n\n", text)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        for parameter in func.parameters:
            if str(parameter.annotation) == "Any":
                parameter.annotation = None


def _classes(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for member in parent.members.values():
        if isinstance(member, griffe.Class):
            yield member
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _classes(member)


def _is_module(cls: griffe.Class) -> bool:
    return any(
        _path(base) == "equinox.Module"
        for ancestor in (cls, *cls.mro())
        for base in ancestor.bases
    )


def _path(of: str | griffe.Expr | None) -> str | None:
    return of.canonical_path if isinstance(of, griffe.Expr) else None


def _fields(cls: griffe.Class) -> list[griffe.Attribute]:
    return [
        member
        for member in cls.members.values()
        if isinstance(member, griffe.Attribute)
        and member.annotation is not None
        and "instance-attribute" in member.labels  # not a `ClassVar`
    ]


def _add_init(cls: griffe.Class) -> None:
    fields = {
        field.name: field
        for ancestor in [*reversed(cls.mro()), cls]
        for field in _fields(ancestor)
        if _path(field.annotation) != "equinox.AbstractVar"
    }
    parameters = [
        griffe.Parameter(
            field.name,
            annotation=field.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=_default(field.value),
        )
        for field in fields.values()
    ]
    if parameters:
        init = griffe.Function(
            "__init__",
            parent=cls,
            parameters=griffe.Parameters(
                griffe.Parameter(
                    "self", kind=griffe.ParameterKind.positional_or_keyword
                ),
                *parameters,
            ),
        )
        cls.set_member("__init__", init)


_FIELDS = {"equinox.field", "eqopt._arguments.fields.static_choice"}


def _default(value: str | griffe.Expr | None) -> str | griffe.Expr | None:
    """The default of a field, also if it is written `eqx.field(default=...)`."""
    if isinstance(value, griffe.ExprCall) and value.canonical_path in _FIELDS:
        arguments = {
            argument.name: argument.value
            for argument in value.arguments
            if isinstance(argument, griffe.ExprKeyword)
        }
        return arguments.get("default")
    return value


def _inherit_docstrings(cls: griffe.Class) -> None:
    for name, method in cls.members.items():
        if isinstance(method, griffe.Function) and method.docstring is None:
            for ancestor in cls.mro():
                inherited = ancestor.members.get(name)
                if inherited is not None and inherited.docstring is not None:
                    method.docstring = inherited.docstring
                    break
