from ._arithmetic import (
    add as add,
    add_scale as add_scale,
    div as div,
    mul as mul,
    scale as scale,
    sub as sub,
)
from ._cast import (
    batch_shape as batch_shape,
    cast as cast,
    cast_like as cast_like,
    clip as clip,
    conj as conj,
    dtype as dtype,
    real as real,
    where as where,
)
from ._like import (
    full_like as full_like,
    ones_like as ones_like,
    zeros_like as zeros_like,
)
from ._map_params import map_params as map_params
from ._metrics import metrics as metrics
from ._migrate import migrate as migrate, migration_plan as migration_plan
from ._migration_plan import (
    MigratedPart as MigratedPart,
    MigrationPlan as MigrationPlan,
)
from ._moments import (
    bias_correction as bias_correction,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from ._nbytes import ByteCount as ByteCount, nbytes as nbytes
from ._random import (
    random_like as random_like,
    split_key_like as split_key_like,
    unwrap_random_key_data as unwrap_random_key_data,
)
from ._reductions import (
    allclose as allclose,
    max as max,
    min as min,
    norm as norm,
    size as size,
    sum as sum,
    vdot as vdot,
)
from ._search import (
    get as get,
    get_all_with_path as get_all_with_path,
    set as set,
    step_count as step_count,
)
