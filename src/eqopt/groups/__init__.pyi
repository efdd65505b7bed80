from ._blocks import BlockAxes as BlockAxes, layer_blocks as layer_blocks
from ._factors import (
    MupFactors as MupFactors,
    layerwise_decay as layerwise_decay,
    mup as mup,
)
from ._routes import (
    Route as Route,
    Routes as Routes,
    routes as routes,
    table as table,
)
from ._rules import (
    MatrixRules as MatrixRules,
    layer_matrices as layer_matrices,
    matrices as matrices,
    no_matrices as no_matrices,
    stacked as stacked,
)
from ._selectors import (
    Selector as Selector,
    everything as everything,
    glob as glob,
    label as label,
    leaf as leaf,
    module as module,
    path as path,
    where as where,
)
