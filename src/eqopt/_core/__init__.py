"""The engine: from the maths of one leaf to a transformation of a whole model.

Read it in this order: `equation.py` is the maths of one leaf, `leafwise.py` maps it over
trees, `transformation.py` is the protocol, `wrapper.py` is for transformations around
others, `reductions.py` has sums over all leaves, and `apply.py` adds updates to
parameters. `calls.py` and `misfits.py` check calls. Other rooms import from here, except
for `_matrices`, which extends `equation.py` and `leafwise.py`.
"""

from .apply import apply_updates, incremental_update
from .equation import Arguments, Equation, ShapeMismatch, equation
from .leafwise import Leafwise, add_updates, leafwise, rounded_like, widened
from .misfits import check_real, check_shapes, check_wide, stateless
from .reductions import dot, global_norm, inner, sum_over_leaves
from .transformation import (
    AbstractLeafwise,
    AbstractOptimizer,
    AbstractStateless,
    AbstractTransformation,
)
from .wrapper import (
    AbstractComposite,
    AbstractWrapper,
    Call,
    as_update,
    keep_norm,
    result_of,
)
