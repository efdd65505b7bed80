from ._projections import (
    box as box,
    halfspace as halfspace,
    hypercube as hypercube,
    hyperplane as hyperplane,
    l1_ball as l1_ball,
    l1_sphere as l1_sphere,
    l2_ball as l2_ball,
    l2_sphere as l2_sphere,
    linf_ball as linf_ball,
    non_negative as non_negative,
    simplex as simplex,
    vector as vector,
)
