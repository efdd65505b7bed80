from ._noise import Gumbel as Gumbel, Normal as Normal
from ._perturbed import make_perturbed_fun as make_perturbed_fun
