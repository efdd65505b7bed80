from ._data import dump as dump, load as load, register as register
