"""Runs a program with a disk that takes its time: so many seconds for each array.

python slow_disk.py SECONDS PROGRAM [ARGUMENT ...]
"""

import runpy
import sys
import time

import numpy as np


_save = np.save


def save(file, x, **options):
    time.sleep(float(seconds))
    _save(file, x, **options)


_, seconds, *sys.argv = sys.argv
np.save = save
runpy.run_path(sys.argv[0], run_name="__main__")
