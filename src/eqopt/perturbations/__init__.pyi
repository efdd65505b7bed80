from ._perturbed import (
    Gumbel as Gumbel,
    Normal as Normal,
    make_perturbed_fun as make_perturbed_fun,
)
