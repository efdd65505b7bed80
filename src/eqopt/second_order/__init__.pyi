from ._fisher_diag import fisher_diag as fisher_diag
from ._hessian_diag import hessian_diag as hessian_diag
from ._hvp import hvp as hvp
