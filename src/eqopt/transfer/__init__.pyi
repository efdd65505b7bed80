from ._batch import marin as marin, rescale as rescale
from ._law import (
    Fit as Fit,
    PowerLaw as PowerLaw,
    find_best as find_best,
    fit as fit,
    hyper_p as hyper_p,
)
from ._plan import Plan as Plan, Settings as Settings
from ._roles import (
    Factors as Factors,
    RoleFactors as RoleFactors,
    complete_p as complete_p,
)
