"""`benchmarks.accelerators` counts the same costs in programs as a count by hand."""

import pytest
from benchmarks.accelerators.cost import Cost, cost
from benchmarks.accelerators.program import nbytes


ADD = """
%add (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  ROOT %c = f32[8]{0} add(%a, %b)
}
"""


def entry(*lines: str, before: str = ADD) -> Cost:
    """The cost of a program whose parameters are `x`, `y` and `i`."""
    first = (
        "%x = f32[8]{0} parameter(0)",
        "%y = f32[8]{0} parameter(1)",
        "%i = s32[] parameter(2)",
    )
    body = "\n".join(f"  {line}" for line in (*first, *lines))
    header = "ENTRY %main (x: f32[8], y: f32[8], i: s32[]) -> f32[8] {"
    return cost(f"HloModule step\n{before}\n{header}\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fusion(%x, %y), kind=kLoop, calls=%add", Cost(kernels=1, least=96, most=96)),
        ("fusion(%x, %x), kind=kLoop, calls=%add", Cost(kernels=1, least=64, most=64)),
        ("copy(%x)", Cost(kernels=1, least=64, most=64, copies=1, copied=64)),
        ("bitcast(%x)", Cost()),
        ("all-reduce(%x), replica_groups={{0,1}}, to_apply=%add", Cost()),
    ],
    ids=["fusion", "one operand", "copy", "name", "collective"],
)
def test_one_operation(line, expected):
    """A fusion reads each operand once, and names and collectives are free."""
    assert entry(f"ROOT %z = f32[8]{{0}} {line}") == expected


SLICE = """
%part (a: f32[100], i: s32[]) -> f32[10] {
  %a = f32[100]{0} parameter(0)
  %i = s32[] parameter(1)
  %s = f32[10]{0} dynamic-slice(%a, %i), dynamic_slice_sizes={10}
  ROOT %n = f32[10]{0} negate(%s)
}
"""


UPDATE = """
%into (a: f32[100], u: f32[10], i: s32[]) -> f32[100] {
  %a = f32[100]{0} parameter(0)
  %u = f32[10]{0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %z = f32[100]{0} dynamic-update-slice(%a, %u, %i)
}
"""


# The last line, and the bytes that it moves.
OF_PARTS = {
    "f32[10]{0} fusion(%a, %i), kind=kLoop, calls=%part": 40 + 4 + 40,
    "f32[10]{0} dynamic-slice(%a, %i), dynamic_slice_sizes={10}": 40 + 4 + 40,
    "f32[100]{0} fusion(%a, %u, %i), kind=kLoop, calls=%into": (40 + 40 + 4) + 40,
    "f32[100]{0} dynamic-update-slice(%a, %u, %i)": (40 + 4) + 40,
}


@pytest.mark.parametrize(("line", "least"), OF_PARTS.items())
def test_a_part_of_an_array_counts_as_the_part(line, least):
    """If it is read, or updated in place."""
    arrays = "%a = f32[100]{0} parameter(3)", "%u = f32[10]{0} parameter(4)"
    found = entry(*arrays, f"ROOT %z = {line}", before=SLICE + UPDATE)
    assert found.least == least


LOOP = """
%body (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %c = (s32[], f32[8]{0}) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  %v = f32[8]{0} get-tuple-element(%c), index=1
  %w = f32[8]{0} negate(%v)
  ROOT %t = (s32[], f32[8]{0}) tuple(%k, %w)
}

%condition (c: (s32[], f32[8])) -> pred[] {
  %c = (s32[], f32[8]{0}) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(7)
  ROOT %p = pred[] compare(%k, %n), direction=DIRECTION
}
"""


@pytest.mark.parametrize(
    ("attributes", "direction", "trips", "unknown"),
    [
        (', backend_config={"known_trip_count":{"n":"5"}}', "GT", 5, 0),
        ("", "LT", 7, 0),
        ("", "GT", 1, 1),
    ],
    ids=["known", "counts to a constant", "unknown"],
)
def test_a_loop_counts_as_often_as_it_runs(attributes, direction, trips, unknown):
    found = entry(
        "%t = (s32[], f32[8]{0}) tuple(%i, %x)",
        "ROOT %z = (s32[], f32[8]{0}) while(%t), condition=%condition, body=%body"
        + attributes,
        before=LOOP.replace("DIRECTION", direction),
    )
    # The condition is not counted: it runs together with the body.
    assert (found.kernels, found.least) == (trips, trips * 64)
    assert found.unknown_loops == unknown


BRANCHES = """
%cheap (a: f32[8]) -> f32[8] {
  ROOT %a = f32[8]{0} parameter(0)
}

%dear (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} negate(%a)
  ROOT %c = f32[8]{0} copy(%b)
}
"""


@pytest.mark.parametrize(
    "branches",
    [
        "branch_computations={%dear, %cheap}",
        "true_computation=%cheap, false_computation=%dear",
    ],
)
def test_a_conditional_has_a_cheapest_and_a_dearest_branch(branches):
    found = entry(
        f"ROOT %z = f32[8]{{0}} conditional(%i, %x, %x), {branches}", before=BRANCHES
    )
    assert found == Cost(kernels=2, least=0, most=128, copies=1, copied=64)


def test_tiles_of_a_tpu_are_padded():
    assert nbytes("f32[10,100]{1,0:T(8,128)}") == 16 * 128 * 4
    assert nbytes("f32[10,100]{0,1:T(8,128)}") == 104 * 128 * 4
    assert nbytes("bf16[10,100]{1,0:T(8,128)(2,1)}") == 16 * 128 * 2
    assert nbytes("f32[10,100]{1,0:T(8,128)S(1)}") == 0
    assert nbytes("f32[10,100]{1,0:T(8,128)S(1)}", everywhere=True) == 16 * 128 * 4
    assert nbytes("(s4[8]{0}, pred[], token[])") == 4 + 1
