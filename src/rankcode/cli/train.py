"""`rankcode train`."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import KW_ONLY, dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from rankcode.cli.messages import as_flags, say, say_left_out
from rankcode.cli.options import DATA, MOST_USED, NETWORK, OPTIMISATION, RUN, Flag, data_name, named_task
from rankcode.data.series import Layout
from rankcode.front_ends import Standardise
from rankcode.network import Network
from rankcode.objectives import Objective
from rankcode.saving.run_folder import free_folder
from rankcode.stopping import Wish
from rankcode.tasks import OwnData
from rankcode.training.distributed import ProcessEnded, ended_with_the_others, is_first, under_torchrun
from rankcode.training.loop import Training, fit
from rankcode.training.recipes import RecipeName, recipe
from rankcode.training.series_model import ModelName, fit_task
from rankcode.training.standard_network import CellName
from rankcode.training.standard_run import NETWORK_OPTIONS, ObjectiveName, standard_objective, standard_run

GROUPS = {
    MOST_USED: "epochs folder",
    OPTIMISATION: """examples batch_size learning_rate optimizer schedule warmup_ratio weight_decay max_grad_norm
        ema_decay input_noise precision seed""",
}


def _shown(default: Any) -> Parameter:
    """How help shows an option with this default."""
    if isinstance(default, bool):
        return Parameter(show_default=False, negative=None if default else ())
    return Parameter(show_default=lambda _: default)


def _training_options() -> Any:
    """`Training` with settings that are left out unless given; its help texts are inherited."""
    groups = {name: group for group, names in GROUPS.items() for name in names.split()}
    hints = get_type_hints(Training)
    settings = []
    for each in fields(Training):
        group = Parameter(group=groups.get(each.name, RUN))
        settings.append((each.name, Annotated[hints[each.name] | None, group, _shown(each.default)], None))
    namespace = {"__module__": __name__, "__post_init__": lambda self: None}
    return make_dataclass("TrainingOptions", settings, bases=(Training,), frozen=True, namespace=namespace)


if TYPE_CHECKING:
    TrainingOptions = Training
else:
    TrainingOptions = _training_options()


@dataclass(frozen=True)
class Train:
    """Train a network on a task, or on your own data, and keep the run in a folder.

    Tasks: spotting, two-sequence, temporal-digits, temporal-mnist, speech-commands.
    Your own data: a .csv, .parquet, .npz, .npy, .ts, .tsv or .arff file, a folder of such
    files of one set, or a folder with a folder of sound files for each class. Small sets
    of series are fitted in seconds; with any option of a network or its training, a recurrent network is trained.

    For example:

        rankcode train two-sequence
        rankcode train gestures.npz --accuracy 0.95
        rankcode train heartbeats.csv --label diagnosis --model recurrent --epochs 200
        rankcode train sounds/ --augment --beta 0.2 --folder runs/sounds
    """

    task: Annotated[str, Parameter(group=MOST_USED)]
    """What to learn: the name of a task, or the path of your own data."""
    _: KW_ONLY
    model: Annotated[ModelName, Parameter(group=MOST_USED)] = "auto"
    """For series: kernels fits a readout to features of random kernels, recurrent trains a recurrent network, ensemble
    does both; auto takes kernels for small sets, and the best of the three on held-out rows for large ones."""
    accuracy: Annotated[float | None, Parameter(group=MOST_USED)] = None
    """For series: answer as early as possible with this accuracy, such as 0.95."""
    mean_steps: Annotated[float | None, Parameter(group=MOST_USED)] = None
    """For series: answer as accurately as possible within this many steps on average."""
    cost_per_step: Annotated[float | None, Parameter(group=MOST_USED)] = None
    """For series: cost of reading one step; a wrong answer costs 1."""
    alpha: Annotated[float | None, Parameter(group=MOST_USED)] = None
    """For series: cost of reading a whole row; a wrong answer costs 1. Default: 0.2, unless another wish is given."""
    recipe: Annotated[RecipeName, Parameter(group=NETWORK)] = "default"
    """Source of all settings that are not given: the defaults, which were chosen by measurement, or the paper."""
    objective: Annotated[ObjectiveName | None, Parameter(group=MOST_USED)] = None
    """at-spike is the paper's rank coding, until-spike learns from every step up to the spike, at-end is conventional
    training. Default: until-spike, or at-spike with the paper's recipe."""
    threshold: Annotated[float | None, Parameter(group=NETWORK)] = None
    """θ at which an output fires. Default: 0.95, or a membrane of 1 for spiking cells."""
    beta: Annotated[str, Parameter(group=NETWORK)] = "0"
    """Weight of the entropy that is rewarded: a number, or a schedule such as 0:0.4,0.5:0.165 (0.4 at first, 0.165 from
    half of the training on)."""
    cell: Annotated[CellName | None, Parameter(group=MOST_USED)] = None
    """Recurrent cell. Default: gru, or lstm with the paper's recipe."""
    hidden_size: Annotated[int | None, Parameter(group=MOST_USED)] = None
    """Units of the cell. Default: 125 for lstm and gru (64 for a gru with fewer than 1,000 training rows), 256 for lif,
    8 channels for conv-lstm, 16 for conv-lif."""
    training: Annotated[TrainingOptions, Parameter(name="*")] = field(default_factory=TrainingOptions)
    data: Annotated[str | None, Parameter(group=DATA)] = None
    """Folder with the data of temporal-mnist or speech-commands. Default: where rankcode data puts it."""
    augment: Annotated[Flag, Parameter(group=DATA)] = False
    """Vary the training data: recordings are shifted, scaled, mixed with noise and masked in parts; the digits of
    temporal-mnist are rotated, stretched and shifted."""
    skip_bad: Annotated[Flag, Parameter(group=DATA)] = False
    """Leave out files and rows that cannot be used, and list them."""
    validation_share: Annotated[float | None, Parameter(group=DATA)] = None
    """Share of the training rows of each class used for validation, if your data has no such split. Default: 0.2."""
    test_share: Annotated[float | None, Parameter(group=DATA)] = None
    """Share of the rows of each class used for testing, if your data has no test split. Default: 0.2."""
    split_seed: Annotated[int | None, Parameter(group=DATA)] = None
    """Seed that chooses these rows. Default: 0."""
    layout: Annotated[Layout | None, Parameter(group=DATA)] = None
    """Layout of an array X with three dimensions in your data: steps-first is [rows, steps, channels], channels-first
    is [rows, channels, steps]."""
    label: Annotated[str | None, Parameter(group=DATA)] = None
    """Column of labels in a .csv or .parquet file. Default: one called label, class, target or y, else the first or
    last column if its values look like labels; the choice is printed."""
    num_layers: Annotated[int, Parameter(group=NETWORK)] = 1
    """Layers of an lstm or gru."""
    readout_layer_size: Annotated[int | None, Parameter(group=NETWORK)] = None
    """Units of a hidden layer (ReLU) between an lstm or gru and the outputs. Default: no such layer."""
    kernel_size: Annotated[int | None, Parameter(group=NETWORK)] = None
    """Kernel width of a conv-lstm or conv-lif, an odd number. Default: 3."""
    decay: Annotated[float | None, Parameter(group=NETWORK)] = None
    """Share of its membrane that a spiking cell keeps from step to step. Default: 0.9; the paper has 0.2."""

    def run(self) -> None:
        given = {name: value for name, value in vars(self.training).items() if value is not None}
        wish = Wish(self.accuracy, self.mean_steps, self.cost_per_step, self.alpha)
        recurrent = self.model == "recurrent" or self._trains_a_recurrent_network(given)
        wishes = ("accuracy", "mean_steps", "cost_per_step", "alpha")
        wished = [name for name in wishes if getattr(self, name) is not None]
        for_series = wished or self.model in ("kernels", "ensemble")
        option = min(wished, default=f"model {self.model}").replace("_", "-")
        if self.model == "recurrent" and wished:
            raise ValueError(f"--model recurrent takes no --{option}: train, then rankcode tune RUN --{option} …")
        if recurrent and for_series:
            raise ValueError(f"--{option} conflicts with options of a recurrent network: leave those out")
        Training(**given).own_device()  # this and a wrong objective are refused before any data is read
        standard_objective(self.recipe, self.objective, self.threshold, self.beta, self.cell)
        task = self.named_task()
        if isinstance(task, OwnData) and isinstance(task.front_end, Standardise) and not recurrent:
            if under_torchrun():
                raise ValueError("series are fitted by one process: without torchrun, or with --model recurrent")
            return self._fit(task, wish, given)
        if for_series:
            raise ValueError(f"--{option} is for series of your own")
        network, task, objective, config = standard_run(task, **self.network_options(), **given)
        if config.folder is None:
            name = self.objective or recipe(self.recipe, None).objective
            config = replace(config, folder=str(free_folder(Path("runs") / f"{data_name(self.task)}-{name}")))
        fit_and_report(network, task, objective, config)

    def named_task(self) -> Any:
        """The task, with the options of the data that were given."""
        names = ("data", "validation_share", "test_share", "split_seed", "layout", "label")
        options = {name: getattr(self, name) for name in names}
        return named_task(self.task, augment=self.augment or None, skip_bad=self.skip_bad or None, **options)

    def network_options(self) -> dict[str, Any]:
        """The options of the network and its objective, as `standard_run` takes them."""
        return {name: getattr(self, name) for name in NETWORK_OPTIONS}

    def _trains_a_recurrent_network(self, given: dict[str, Any]) -> bool:
        """Whether an option was given that only a recurrent network has."""
        options = set(given) - {"folder", "seed", "progress", "device"}
        plain = Train(self.task)
        return bool(options) or any(getattr(self, name) != getattr(plain, name) for name in NETWORK_OPTIONS)

    def _fit(self, task: OwnData, wish: Wish, given: dict[str, Any]) -> None:
        """Fit a model to series, and print how good it is, where it is, and what to do next."""
        say(task.summary(), file=sys.stderr)
        say_left_out(task.left_out)
        folder = given.get("folder") or str(free_folder(Path("runs") / data_name(self.task)))
        options = {name: given[name] for name in ("progress", "device") if name in given}
        found = fit_task(task, wish, self.model, given.get("seed", 0), folder, **options)
        tuning, name = found.tuning, shlex.quote(folder)
        rows = sum(split.size for split in (task.train, task.validation) if split is not None)
        say(f"fitted {found.model} to {rows:,} rows; on held-out rows:")
        say(f"  {tuning}")
        for other, promised in found.compared.items():
            if other != found.model:
                say(f"  {other} instead: {promised}")
        neighbour = f"the nearest neighbour {100 * found.nearest_neighbour:.1f} %, from whole rows"
        say(f"  to compare: the most common class {100 * found.majority:.1f} %, {neighbour}")
        best = max(found.majority, found.nearest_neighbour)
        if tuning.expected.accuracy < best - 0.02 and wish.accuracy is None and (wish.alpha or 1) > 0.05:
            say("  the better of these is right more often: try --alpha 0.05, which waits longer")
        say(f"the model is in {folder}; try next:")
        say(f"  rankcode evaluate {name}               # on test data")
        other_wish = "--alpha 0.5" if wish.mean_steps else f"--mean-steps {math.ceil(tuning.expected.mean_steps)}"
        say(f"  rankcode tune {name} {other_wish}   # another wish")
        say(f"  rankcode predict {name} FILE --plot answers.png   # on new data, and draw when it answers and why")


def fit_and_report(network: Network, task: Any, objective: Objective, config: Training) -> None:
    """Train, and print how good the kept model is, where it is, and what to do next."""
    folder, name = Path(str(config.folder)), shlex.quote(str(config.folder))

    def how_to_go_on(command: str) -> str:
        return f"; continue with: {command} resume {name}" if (folder / "checkpoint.pt").exists() else ""

    try:
        with ended_with_the_others():
            if is_first():
                if hasattr(task, "summary"):
                    say(task.summary(), file=sys.stderr)
                say_left_out(getattr(task, "left_out", ()))
            history = fit(network, task, objective, config)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped{how_to_go_on('rankcode')}") from None
    except ProcessEnded:
        more = how_to_go_on("torchrun … -m rankcode")
        raise ProcessEnded(f"stopped, because a process of the training has ended{more}") from None
    if not is_first():
        return
    kept = history.best if config.finish_with == "best" else history.records[-1]
    if kept is not None and "validation" in kept:
        report = kept["first_spike" if config.select == "first_spike_accuracy" else "validation"]
        measured = f"accuracy {100 * report['accuracy']:.2f} %, mean steps {report['mean_steps']:.2f}"
        say(f"kept the {config.finish_with} model: {measured} on {report['rows']:,} validation rows")
    if history.problem is not None:
        say(as_flags(history.problem, vars(config)))
    say(f"the run is in {folder}; try next:")
    if history.problem is not None:
        say(f"  rankcode resume {name} --examples {2 * history.records[-1]['examples']}  # train for longer")
    say(f"  rankcode evaluate {name}     # on test data", f"  rankcode tradeoff {name}     # at other thresholds")
    if network.front_end is not None and network.front_end.file_suffixes:
        say(f"  rankcode predict {name} FILE # on new data")
