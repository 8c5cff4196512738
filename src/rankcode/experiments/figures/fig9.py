"""Fig. 9: a fully spiking network, trained at its first output spike and conventionally: when it first spikes, and
how often rightly, through training. Times are of the first output membrane at 0.5."""

from __future__ import annotations

from matplotlib.figure import Figure

from rankcode.experiments.figures import measures
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import spiking as trainings
from rankcode.rules import Never, Threshold

TITLE = "Fig. 9: rank coding in a spiking network, through training"
SPIKE, END = "rank-coded", "conventional"


def reproduce(place: Reproduction) -> Result:
    settings = {SPIKE: trainings.rank_coded(place), END: trainings.conventional(place)}
    runs = {name: [place.trained(setting, seed) for seed in place.seeds()] for name, setting in settings.items()}
    first = {name: trained[0] for name, trained in runs.items()}
    histories = {name: measures.through_training(trained) for name, trained in first.items()}
    drawn = {"through training": histories, "seeds": len(runs[SPIKE]), **measures.cost_curves(runs)}
    numbers = [*_numbers(runs), *measures.cost(runs)]
    return Result(_draw(histories), numbers, drawn, _text(place, first))


def _numbers(runs: dict[str, list[Trained]]) -> list[Number]:
    numbers = []
    for name, trained in runs.items():
        reports = [each.report(Threshold(trainings.THETA), model="last") for each in trained]
        numbers.append(measures.accuracy(f"{name}, first spike: accuracy", reports))
        numbers.append(measures.time(f"{name}, first spike", reports))
    at_end = [each.report(Never(), model="last") for each in runs[END]]
    numbers.append(measures.accuracy(f"{END}, last step: accuracy", at_end))
    return numbers


def _text(place: Reproduction, first: dict[str, Trained]) -> str:
    spike, end = (first[name].report(Threshold(trainings.THETA), model="last") for name in (SPIKE, END))
    saved = 100 * (1 - first[SPIKE].share_read / first[END].share_read)
    scale = "" if place.scale == "paper" else " At this scale the network is small and training short."
    return (
        f"After training, the rank-coded network spikes after {spike['mean_steps']:.2f} steps and is right for "
        f"{100 * spike['accuracy']:.2f} % of the test digits; the conventional one, at its first spike, after "
        f"{end['mean_steps']:.2f} steps and for {100 * end['accuracy']:.2f} %. Rank-coded training read {saved:.0f} % "
        f"fewer steps.{scale}"
    )


def _draw(histories: dict) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr]
    panels = figure.subplots(1, 2)
    measures.draw_through_training(panels[0], panels[1], histories)
    panels[0].legend(frameon=False)
    for axes, letter in zip(panels, "AB", strict=True):
        axes.set_title(letter, loc="left", weight="bold")
    return figure
