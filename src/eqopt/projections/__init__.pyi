from ._balls import (
    l1_ball as l1_ball,
    l1_sphere as l1_sphere,
    l2_ball as l2_ball,
    l2_sphere as l2_sphere,
    simplex as simplex,
)
from ._box import (
    box as box,
    hypercube as hypercube,
    linf_ball as linf_ball,
    non_negative as non_negative,
)
from ._hyperplane import (
    halfspace as halfspace,
    hyperplane as hyperplane,
    vector as vector,
)
