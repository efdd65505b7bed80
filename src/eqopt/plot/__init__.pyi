from ._schedule import schedule as schedule
