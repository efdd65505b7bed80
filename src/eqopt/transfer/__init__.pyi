from ._transfer import (
    Factors as Factors,
    Fit as Fit,
    Plan as Plan,
    PowerLaw as PowerLaw,
    RoleFactors as RoleFactors,
    Settings as Settings,
    complete_p as complete_p,
    find_best as find_best,
    fit as fit,
    hyper_p as hyper_p,
    marin as marin,
    rescale as rescale,
)
