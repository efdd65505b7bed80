"""Writes the tables of all optimizers into the documentation."""

from .overview import PAGE, written


PAGE.write_text(written(PAGE.read_text()))
