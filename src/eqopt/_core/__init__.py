"""The engine: from the maths of one leaf to a transformation of a whole model.

Read it in this order: `equation.py` is the maths of one leaf, `leafwise.py` maps it over
trees, `transformation.py` is the protocol, `wrapper.py` is for transformations around
others, and `reductions.py` has sums over all leaves. For matrices, `layouts.py` says how
a leaf is a stack of them, `matrixwise.py` applies an equation to each, `on_matrices.py`
joins equal ones into batches (`batches.py`), which take turns (`turns.py`), or which
devices divide (`division.py`, `stacks.py`). `calls.py` and `misfits.py` check calls.
Other rooms import all of it from here.
"""

from .apply import (
    apply_updates as apply_updates,
    incremental_update as incremental_update,
)
from .batches import (
    BATCH as BATCH,
    Batching as Batching,
    Work as Work,
    batches as batches,
    largest_batch as largest_batch,
)
from .division import (
    AbstractWhole as AbstractWhole,
    Division as Division,
    use_division as use_division,
)
from .equation import (
    Arguments as Arguments,
    Equation as Equation,
    ShapeMismatch as ShapeMismatch,
    equation as equation,
)
from .layouts import (
    Layout as Layout,
    Pieces as Pieces,
    are_matrices as are_matrices,
    is_layout as is_layout,
    made as made,
    map_layouts as map_layouts,
)
from .leafwise import (
    Leafwise as Leafwise,
    add_updates as add_updates,
    leafwise as leafwise,
    rounded_like as rounded_like,
    widened as widened,
)
from .matrixwise import (
    AbstractContracting as AbstractContracting,
    AbstractMatrixwise as AbstractMatrixwise,
    Rows as Rows,
)
from .misfits import (
    check_real as check_real,
    check_shapes as check_shapes,
    check_wide as check_wide,
    stateless as stateless,
)
from .reductions import (
    dot as dot,
    global_norm as global_norm,
    inner as inner,
    sum_over_leaves as sum_over_leaves,
)
from .transformation import (
    AbstractLeafwise as AbstractLeafwise,
    AbstractOptimizer as AbstractOptimizer,
    AbstractStateless as AbstractStateless,
    AbstractTransformation as AbstractTransformation,
)
from .wrapper import (
    AbstractComposite as AbstractComposite,
    AbstractWrapper as AbstractWrapper,
    Call as Call,
)
