"""Options that several commands have, and the groups in which help shows them."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Group, Parameter

MOST_USED, DATA, NETWORK, OPTIMISATION, RUN = (
    Group(name, sort_key=place)
    for place, name in enumerate(("Most used", "Data", "Network", "Optimisation", "Run"), start=1)
)

Flag = Annotated[bool, Parameter(negative=())]

Device = Annotated[str, Parameter(help="cpu, cuda, cuda:N or auto, which takes a GPU where there is one.")]
Model = Annotated[
    Literal["best", "last"] | None, Parameter(help="Which weights of the run. Default: those training finished with.")
]
MovedData = Annotated[
    str | None, Parameter(help="Where the data of the run's task is, if it has moved since training.")
]
TestRows = Annotated[
    int | None, Parameter(help="Test sequences to draw, for a generated task. Default: as the task says.")
]
