from ._diagonals import fisher_diag as fisher_diag, hessian_diag as hessian_diag
from ._hvp import hvp as hvp
