from ._law import (
    Fit as Fit,
    Plan as Plan,
    PowerLaw as PowerLaw,
    Settings as Settings,
    find_best as find_best,
    fit as fit,
    hyper_p as hyper_p,
)
from ._rules import (
    Factors as Factors,
    RoleFactors as RoleFactors,
    complete_p as complete_p,
    marin as marin,
    rescale as rescale,
)
