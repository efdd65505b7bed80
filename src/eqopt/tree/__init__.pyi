from ._like import zeros_like as zeros_like
from ._norm import norm as norm
from ._search import (
    get as get,
    get_all_with_path as get_all_with_path,
    set as set,
)
