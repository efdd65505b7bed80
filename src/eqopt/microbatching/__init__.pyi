from ._accumulator import (
    AccumulationType as AccumulationType,
    Accumulator as Accumulator,
)
from ._batch import reshape_batch_axis as reshape_batch_axis
from ._clipped import (
    clipped_grad as clipped_grad,
    gradient_paths as gradient_paths,
    per_example_grad_norms as per_example_grad_norms,
)
from ._microbatch import (
    micro_grad as micro_grad,
    micro_value_and_grad as micro_value_and_grad,
    micro_vmap as micro_vmap,
    microbatch as microbatch,
)
