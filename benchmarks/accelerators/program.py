"""Reads the text of a compiled program: `compiled.as_text()`."""

import math
import re
from typing import NamedTuple


# Bytes per element. Other types, such as tokens, take no memory.
WIDTHS: dict[str, float] = {
    **dict.fromkeys(("s2", "u2"), 0.25),
    **dict.fromkeys(("s4", "u4"), 0.5),
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("f8e3m4", "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn"), 1),
    **dict.fromkeys(("f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0fnu"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}

ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")


class Instruction(NamedTuple):
    """One line of a program, such as `%y = f32[8]{0} fusion(%x), calls=%f`.

    - `name`: "y".
    - `type`: "f32[8]{0}", or a tuple of such types.
    - `kind`: "fusion".
    - `operands`: names of instructions: "x".
    - `literal`: the text in parentheses, which is the value of a constant or the index of
        a parameter.
    - `attributes`: the rest of the line.
    - `is_root`: whether it is the result of its computation.
    """

    name: str
    type: str
    kind: str
    operands: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    def called(self, key: str) -> list[str]:
        """The computations in an attribute with one value, such as `calls=%f`."""
        return re.findall(rf"{key}=%?([\w.\-]+)", self.attributes)

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional."""
        if listed := re.search(r"branch_computations=\{([^}]*)\}", self.attributes):
            return _NAME.findall(listed[1])
        return self.called("(?:true|false)_computation")

    @property
    def target(self) -> str:
        """What a custom call calls."""
        found = re.search(r'custom_call_target="([^"]*)"', self.attributes)
        return found[1] if found else ""


Computation = list[Instruction]


class Program(NamedTuple):
    """The computations by name, and the name of the one that runs first."""

    computations: dict[str, Computation]
    entry: str


def parse(text: str) -> Program:
    """Reads the text of a program."""
    computations: dict[str, Computation] = {}
    entry, current = None, None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header and " = " not in line.partition("(")[0]:
            current = computations.setdefault(header[2], [])
            if header[1]:
                entry = header[2]
        elif line.startswith("}"):
            current = None
        elif current is not None and (found := _instruction(line)):
            current.append(found)
    if entry is None:
        raise ValueError(
            f"the text of a program has no line with ENTRY, but {text[:80]!r}; pass "
            "`jax.jit(f).lower(...).compile().as_text()`"
        )
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    type_, rest = first_type(match[3])
    kind = re.match(r"([\w\-]+)\(", rest)
    if kind is None:
        return None
    end = _closing(rest, kind.end() - 1)
    inside = rest[kind.end() : end]
    operands = tuple(_NAME.findall(inside))
    return Instruction(
        match[2], type_, kind[1], operands, inside, rest[end + 1 :], bool(match[1])
    )


def first_type(text: str) -> tuple[str, str]:
    """Splits "(f32[2], f32[3]) fusion(...)" after the type."""
    if not text.startswith("("):
        type_, _, rest = text.partition(" ")
        return type_, rest
    end = _closing(text, 0) + 1
    return text[:end], text[end:].strip()


def _closing(text: str, start: int) -> int:
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text)


def nbytes(type_: str, everywhere: bool = False) -> float:
    """The bytes of all arrays in a type, with the padding of their tiles.

    **Arguments:**

    - `type_`: for example "f32[8,128]{1,0:T(8,128)S(1)}".
    - `everywhere`: whether arrays outside main memory count, whose layout says "S(1)".
    """
    total = 0.0
    for dtype, dims, layout in ARRAY.findall(type_):
        if dtype in WIDTHS and (everywhere or "S(" not in layout):
            total += math.prod(_padded(dims, layout)) * WIDTHS[dtype]
    return total


def _padded(dims: str, layout: str) -> list[int]:
    shape = [int(n) for n in dims.split(",") if n]
    tile = re.search(r"T\(([\d,]+)\)", layout)
    if tile and shape:
        minor_first = [int(axis) for axis in layout.partition(":")[0].split(",")]
        sides = reversed(tile[1].split(","))
        # A tile may have fewer axes than the array, and also more.
        for axis, side in zip(minor_first, sides, strict=False):
            shape[axis] = math.ceil(shape[axis] / int(side)) * int(side)
    return shape
