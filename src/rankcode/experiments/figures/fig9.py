"""Fig. 9: a fully spiking network, trained at its first output spike and conventionally: the time and the accuracy of
its first spikes through training. An output neuron fires when its membrane reaches 0.5."""

from __future__ import annotations

from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.figures.through_training import draw_through_training, through_training
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import spiking as trainings
from rankcode.experiments.trainings.mnist import at_this_scale
from rankcode.rules import Never, Threshold

TITLE = "Fig. 9: rank coding in a spiking network, through training"
SPIKE, END = "rank-coded", "conventional"


def reproduce(place: Reproduction) -> Result:
    runs = place.runs(trainings.settings(place), place.seeds())
    first = {name: trained[0] for name, trained in runs.items()}
    histories = {name: through_training(trained) for name, trained in first.items()}
    drawn = {"through training": histories, "seeds": len(runs[SPIKE]), **numbers.cost_curves(runs)}
    found = [*_numbers(runs), *numbers.cost(runs)]
    return Result(_draw(histories), found, drawn, _text(place, first), first.values())


def _numbers(runs: dict[str, list[Trained]]) -> list[Number]:
    found = []
    for name, trained in runs.items():
        found += numbers.answers(f"{name}, first spike", trained, Threshold(trainings.THETA))
    return [*found, numbers.accuracy(f"{END}, last step", numbers.reports(runs[END], Never()))]


def _text(place: Reproduction, first: dict[str, Trained]) -> str:
    spike, end = (first[name].report(Threshold(trainings.THETA), model="last") for name in (SPIKE, END))
    saved = 100 * (1 - first[SPIKE].share_read / first[END].share_read)
    return (
        f"After training, the rank-coded network spikes after {spike['mean_steps']:.2f} steps and gets "
        f"{100 * spike['accuracy']:.2f} % of the test digits right; the conventional one spikes after "
        f"{end['mean_steps']:.2f} steps and gets {100 * end['accuracy']:.2f} % right. Rank-coded training read "
        f"{saved:.0f} % fewer steps.{at_this_scale(place)}"
    )


def _draw(histories: dict) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr]
    panels = figure.subplots(1, 2)
    draw_through_training(panels[0], panels[1], histories)
    panels[0].legend(frameon=False)
    for axes, letter in zip(panels, "AB", strict=True):
        axes.set_title(letter, loc="left", weight="bold")
    return figure
