from ._dump import dump as dump
from ._load import load as load
from ._table import register as register
