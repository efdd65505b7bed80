from ._dump import dump as dump, register as register
from ._load import load as load
