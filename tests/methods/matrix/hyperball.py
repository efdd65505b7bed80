"""Hyperball: matrices that turn, and keep their length."""

import eqopt

from ...laws.row import LINEAR, row
from ..method import Method


def hyperball(learning_rate, **data):
    return eqopt.Hyperball(eqopt.ScaleByAdam(), learning_rate, **data)


METHODS = [
    Method(
        eqopt.Hyperball,
        idea="matrices turn by the direction of another optimizer and keep their norm",
        ours=hyperball,
        deviates="Optax has no Hyperball; beside it is Adam, whose direction it takes",
        nearest="Adam",
        default_rate=0.01,
        rates=(0.0032, 0.01, 0.0032, 0.01),
        ratio=None,
        laws=[
            row(eqopt.RelativeUpdate),
            row(eqopt.UpdateNormFloor, floor=0.8),
            row(
                lambda floor=0.35: eqopt.UpdateNormFloor(floor, "row"),
                name="UpdateNormFloor(row)",
                floor=0.8,
            ),
            row(eqopt.RadialBrake, outward=0.3, inward=0.8),
            row(
                lambda **data: eqopt.RadialBrake(of="component", **data),
                name="RadialBrake(component)",
                outward=0.3,
                inward=0.8,
            ),
            row(lambda radius=2.0: eqopt.KeepNorm(radius), name="KeepNorm", radius=3.0),
            row(hyperball, at=0.05, name="Hyperball(Adam)", learning_rate=0.1),
            row(
                lambda: eqopt.Hyperball(
                    eqopt.ScaleByMuon(), LINEAR, radius="initial", per="row"
                ),
                name="Hyperball(Muon, schedule, initial rows)",
            ),
        ],
    ),
]
