from ._arithmetic import (
    add as add,
    add_scale as add_scale,
    bias_correction as bias_correction,
    div as div,
    mul as mul,
    scale as scale,
    sub as sub,
    update_infinity_moment as update_infinity_moment,
    update_moment as update_moment,
    update_moment_per_elem_norm as update_moment_per_elem_norm,
)
from ._like import (
    batch_shape as batch_shape,
    cast as cast,
    cast_like as cast_like,
    clip as clip,
    conj as conj,
    dtype as dtype,
    full_like as full_like,
    ones_like as ones_like,
    random_like as random_like,
    real as real,
    split_key_like as split_key_like,
    unwrap_random_key_data as unwrap_random_key_data,
    where as where,
    zeros_like as zeros_like,
)
from ._metrics import metrics as metrics
from ._migrate import (
    MigratedPart as MigratedPart,
    MigrationPlan as MigrationPlan,
    migrate as migrate,
    migration_plan as migration_plan,
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
from ._slots import ByteCount as ByteCount, map_params as map_params, nbytes as nbytes
