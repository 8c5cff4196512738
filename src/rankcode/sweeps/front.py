"""The composite front of a sweep: the best networks and thresholds of all runs together.

Every network is measured at every threshold. The front is chosen on validation data: it has the pairs of a network and
a threshold that no other pair beats in accuracy without reading more steps. It is drawn on test data, which have no
part in the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from typing import Any

from rankcode.data.sources import BadData
from rankcode.metrics import area, cost
from rankcode.rules import Threshold
from rankcode.saving.files import whole_file
from rankcode.saving.run_folder import RunFolder
from rankcode.stopping import Wish
from rankcode.sweeps.sweep_folder import SweepFolder

MEASURES = ("accuracy", "mean_steps", "earliness", "fired")


def points_of(number: int, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a network does at each threshold: run, threshold, and its measures on validation and test data."""
    points = []
    for place, threshold in enumerate(result.get("validation", {}).get("thresholds", ())):
        validation, test = (
            {measure: result[split][measure][place] for measure in MEASURES} for split in ("validation", "test")
        )
        points.append({"run": number, "threshold": threshold, "validation": validation, "test": test})
    return points


def composite(results: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The points of all runs that no other beats on validation data, from the fewest steps to the most."""
    points = [point for number, result in sorted(results.items()) for point in points_of(number, result)]
    front: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda each: (each["validation"]["mean_steps"], -each["validation"]["accuracy"])):
        if not front or point["validation"]["accuracy"] > front[-1]["validation"]["accuracy"]:
            front.append(point)
    return front


def write_front(folder: SweepFolder, results: Mapping[int, Mapping[str, Any]]) -> None:
    """Write front.json."""
    plan, front = folder.plan(), composite(results)
    content: dict[str, Any] = {"task": plan["task"], "chosen on": "validation"}
    for split in ("validation", "test"):
        earliness, accuracy = ([point[split][name] for point in front] for name in ("earliness", "accuracy"))
        majority = results[front[0]["run"]][split]["majority"] if front else 0.0
        content[f"{split} area"] = area(earliness, accuracy, majority)
    content["front"] = [
        {"folder": str(folder.run(point["run"]).relative_to(folder.path)), "options": plan["runs"][point["run"] - 1]}
        | point
        for point in front
    ]
    folder.write_front(content)


def draw_front(folder: SweepFolder, results: Mapping[int, Mapping[str, Any]]) -> None:
    """Write front.png, if matplotlib is installed."""
    curves = {number: result["test"] for number, result in results.items() if "test" in result}
    if curves and find_spec("matplotlib") is not None:
        from rankcode.plots.front import plot_front

        figure = plot_front(curves, composite(results), f"Sweep {folder.path.name}, test data")
        with whole_file(folder.path / "front.png") as picture:
            figure.savefig(picture, format="png", dpi=120)


def pick(path: str, **wish: float | None) -> dict[str, Any]:
    """Pick the network and threshold of a sweep that meet a wish best on validation data; the point of the front.

    The wish is `accuracy`, `mean_steps`, `cost_per_step` or `alpha`, as for `tune`. The threshold becomes the rule of
    the network, and from then on the folder of the sweep stands for the run, as in `rankcode.load(path)`.
    """
    folder, wanted = SweepFolder(path), Wish(**wish)
    point = _chosen(folder.front()["front"], wanted)
    with closing(RunFolder(folder.path / point["folder"])) as run:
        network = run.model()
        network.rule = Threshold(point["threshold"], getattr(network.rule, "classes", None))
        run.write_model(run.kept_model(), network)
    given = {name: value for name, value in vars(wanted).items() if value is not None}
    folder.write_picked({**point, "number": point["run"], "run": point["folder"], "wish": given})
    return point


def _chosen(front: list[dict[str, Any]], wish: Wish) -> dict[str, Any]:
    """The point of a front, which is sorted by steps and by accuracy, that meets a wish best."""
    if not front:
        raise BadData("no run of this sweep has a front to pick from")
    measured = [(point["validation"], point) for point in front]
    least, most = measured[0][0]["mean_steps"], measured[-1][0]["accuracy"]
    if wish.accuracy is not None:
        if most < wish.accuracy:
            raise ValueError(f"an accuracy of {wish.accuracy:g} cannot be reached: the most is {most:.3f}")
        return next(point for values, point in measured if values["accuracy"] >= wish.accuracy)
    if wish.mean_steps is not None:
        if least > wish.mean_steps:
            raise ValueError(f"{wish.mean_steps:g} steps on average cannot be reached: the least is {least:.2f}")
        return [point for values, point in measured if values["mean_steps"] <= wish.mean_steps][-1]

    def price(values: dict[str, float]) -> float:
        if wish.cost_per_step is not None:
            return 1 - values["accuracy"] + wish.cost_per_step * values["mean_steps"]
        return cost(values["accuracy"], values["earliness"], wish.alpha or 0.0)

    return min(measured, key=lambda pair: price(pair[0]))[1]
