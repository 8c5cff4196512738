"""Fig. 3: a digit as ten steps, how spikes move forward through training, and how β moves a network from the slow
regime to the fast one. The paper draws a ConvLSTM of 20 units; we draw the LSTM of 340 units as well."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from rankcode.experiments.figures import numbers
from rankcode.experiments.figures.through_training import draw_through_training, through_training
from rankcode.experiments.reproduction import Number, Reproduction, Result, Trained
from rankcode.experiments.trainings import mnist as trainings
from rankcode.plots.style import COLOURS, DARK, GREY
from rankcode.rules import Threshold

TITLE = "Fig. 3: temporal MNIST"
LSTM, CONV, SWITCH = "LSTM-340", "ConvLSTM-20", "ConvLSTM-20, β switches"
PAPER = {LSTM: 98.14, CONV: 99.19}  # of Table 1


def reproduce(place: Reproduction) -> Result:
    made = trainings.settings(place)
    settings = {LSTM: made["lstm-rank-coded"], CONV: made["conv-lstm-20-fast"], SWITCH: made["conv-lstm-20-switch"]}
    runs = place.runs(settings)
    first = {name: trained for name, (trained,) in runs.items()}
    histories = {name: through_training(trained) for name, trained in first.items()}
    before, after = _around_the_switch(first[SWITCH])
    curves = {
        "through training": histories,
        "β": {LSTM: trainings.BETA, CONV: trainings.BETA, "switch": [trainings.FIRST_BETA, trainings.BETA]},
        "units": {LSTM: trainings.lstm_units(place), CONV: trainings.conv_lstm_units(place, 20)},
        **numbers.cost_curves(runs),
    }
    found = [*_numbers(first), *_switch_numbers(before, after), *numbers.cost(runs)]
    return Result(_draw(place, histories), found, curves, _text(place, histories, before, after), first.values())


def _around_the_switch(trained: Trained) -> tuple[dict[str, Any], dict[str, Any]]:
    """Validation reports at the end of the first β and at the end of training."""
    examples = trained.records[-1]["examples"]
    early = [record for record in trained.records if record["examples"] <= trainings.SWITCH_AT * examples]
    return early[-1]["validation"], trained.records[-1]["validation"]


def _numbers(first: dict[str, Trained]) -> list[Number]:
    found = []
    for name, trained in first.items():
        report = trained.report(Threshold(trainings.THETA), model="last")
        note = "the paper's: best of two runs on the test set" if name in PAPER else ""
        frame = 100 * trainings.share_of_frame(report, trained.setting.task.steps)
        paper, counted = "< 15 %" if name in PAPER else None, "from 0, without rows that never fire"
        found += [
            numbers.accuracy(f"{name}, end of training", [report], PAPER.get(name), note),
            Number(f"{name}: frame passed at the spike", paper, frame, "%", None, counted),
            numbers.mean_steps(name, [report]),
        ]
    return found


def _switch_numbers(before: dict[str, Any], after: dict[str, Any]) -> list[Number]:
    found = []
    for when, report in ((f"β = {trainings.FIRST_BETA:g}", before), (f"then β = {trainings.BETA:g}", after)):
        found.append(numbers.accuracy(f"{SWITCH}, {when}", [report], None, "validation"))
        found.append(numbers.mean_steps(f"{SWITCH}, {when}", [report], "validation"))
    return found


def _text(place: Reproduction, histories: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> str:
    def moved(name: str) -> str:
        history = histories[name]
        return (
            f"{name} from {history['mean_steps'][0]:.1f} to {history['mean_steps'][-1]:.1f} steps of ten, with "
            f"{100 * history['accuracy'][-1]:.2f} % right at the end"
        )

    return (
        f"Answers move to earlier steps during training: those of {moved(LSTM)}, and those of {moved(CONV)} "
        "(validation digits, one seed). Grey bands are the paper's regimes: fast, before 15 % of the frame has passed, "
        f"and slow, after 25 %. {trainings.beyond_the_paper(place)} With β = "
        f"{trainings.FIRST_BETA:g} the ConvLSTM reads {before['mean_steps']:.2f} steps and gets "
        f"{100 * before['accuracy']:.2f} % right; trained further with β = {trainings.BETA:g} it ends at "
        f"{after['mean_steps']:.2f} steps and {100 * after['accuracy']:.2f} %.{trainings.at_this_scale(place)}"
    )


def _draw(place: Reproduction, histories: dict[str, Any]) -> Figure:
    figure = Figure(figsize=(11, 8.4), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1)  # type: ignore[union-attr]
    parts: Any = figure.subfigures(3, 1, height_ratios=(0.62, 1, 1))
    titles = (
        f"B  rank-coded training, β = {trainings.BETA:g}, validation digits",
        "C  ConvLSTM-20, β lowered during training, validation digits",
    )
    _draw_digit(parts[0], trainings.task(place))
    for part, title, names in zip(parts[1:], titles, ((LSTM, CONV), (SWITCH,)), strict=True):
        panels = part.subplots(1, 2)
        draw_through_training(panels[0], panels[1], {name: histories[name] for name in names})
        part.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
        _draw_regimes(panels[0])
        if SWITCH in names:
            _draw_betas(panels, histories[SWITCH]["epochs"][-1])
        else:
            panels[1].legend(frameon=False, loc="lower right")
    return figure


def _draw_regimes(axes: Any) -> None:
    """The paper's regimes, converted to steps read: the paper counts from 0."""
    for name, low, high in (("fast", 0, 2.5), ("slow", 3.5, 10.4)):
        axes.axhspan(low, high, color=GREY, alpha=0.1, lw=0)
        where = {"xytext": (-4, 0), "textcoords": "offset points", "xycoords": axes.get_yaxis_transform()}
        axes.annotate(name, (1, low + 0.6), ha="right", va="center", fontsize=8, color=GREY, **where)


def _draw_betas(panels: Any, end: float) -> None:
    at = trainings.SWITCH_AT * end
    for axes in panels:
        axes.lines[0].set_color(COLOURS[1])
        axes.axvline(at, color=DARK, lw=1, ls="--")
    for left, right, beta in ((0, at, trainings.FIRST_BETA), (at, end, trainings.BETA)):
        where = {"xy": ((left + right) / 2, 0.45), "xycoords": panels[0].get_xaxis_transform()}
        panels[0].annotate(f"β = {beta:g}", ha="center", color=DARK, fontsize=9, **where)


def _draw_digit(part: Any, task: Any) -> None:
    inputs, labels, _ = next(iter(task.test.scan(1, "cpu")))
    frames = inputs[0, :, 0]  # [steps, height, width]
    for step, axes in enumerate(part.subplots(1, len(frames))):
        axes.imshow(frames[step].numpy(), cmap="Greys", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"step {step + 1}", fontsize=9)
    name = task.label_names[int(labels[0])]
    title = f"A  a {name}: every pixel spikes once, the darkest ink first, the background last"
    part.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
