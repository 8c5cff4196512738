"""`make page`: export the networks of the web page, measure them, and build the page from the sources in page/.

The result is committed in src/rankcode/serve/page, so that only those who change the page need Node. `build.json` holds
checksums of everything it was made from: a test compares them.

Only networks that have changed are exported and measured again. This needs the data sets `speech-commands` and `mnist`
in the folder RANKCODE_DATA.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankcode.export import export_onnx
from rankcode.inference import trace
from rankcode.metrics import evaluate, tradeoff
from rankcode.models import model_path
from rankcode.network import Network
from rankcode.rules import Never
from rankcode.saving.files import write_whole
from rankcode.saving.run_folder import RunFolder, load
from rankcode.serve.static_page import FOLDER
from rankcode.tasks.speech_commands import KEYWORDS, SpeechCommands, recordings

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "page"
RUNS = ROOT / "results" / "reproduction" / "runs" / "paper"
SPEECH = "speech-commands"
NETWORKS = {  # the name of each network in the page, and where it comes from
    SPEECH: model_path(SPEECH),
    "spotting-rank-coded": RUNS / "spotting-rank-coded-0",
    "spotting-conventional": RUNS / "spotting-conventional-0",
    "two-sequence-rank-coded": RUNS / "two-sequence-rank-coded-0.95-0",
    "two-sequence-conventional": RUNS / "two-sequence-conventional-0",
    "digits": RUNS / "mnist-own-0",
    # RANKCODE_DATA=data python -m rankcode.experiments.conventional_digits results/page/digits-conventional.safetensors
    "digits-conventional": ROOT / "results" / "page" / "digits-conventional.safetensors",
}
TASKS = {  # the rank-coded and the conventional network of each task
    "spotting": ("spotting-rank-coded", "spotting-conventional"),
    "two-sequence": ("two-sequence-rank-coded", "two-sequence-conventional"),
    "digits": ("digits", "digits-conventional"),
}
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998, 0.999)
TEST_ROWS = 50_000  # sequences that the networks of generated tasks are measured on
BATCH_SIZE = 512


def checksum(paths: Iterable[Path], base: Path) -> str:
    """Of the names and contents of files."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(f"{path.relative_to(base).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def checksums() -> dict[str, str]:
    """Of everything the page is made from: its sources, and each network."""
    sources = (path for path in SOURCES.rglob("*") if path.is_file() and "node_modules" not in path.parts)
    found = {"sources": checksum(sources, SOURCES)}
    for name, path in NETWORKS.items():
        files = [path] if path.is_file() else [path / "config.json", *path.glob("*.safetensors")]
        found[name] = checksum(files, path.parent)
    return found


def outdated() -> list[str]:
    """What has changed since the page was built."""
    built = json.loads((FOLDER / "build.json").read_text()) if (FOLDER / "build.json").exists() else {}
    return [name for name, value in checksums().items() if built.get(name) != value]


def speech_curve(network: Network, folder: Path) -> dict[str, Any]:
    """Accuracy and sound heard of the pretrained network on the test recordings, *silence* counted as *unknown*."""
    front_end: Any = network.front_end
    thresholds = sorted({*THRESHOLDS, getattr(network.rule, "threshold", THRESHOLDS[0])})
    names = [(name, word) for name, word, split in recordings(folder) if split == "test"]
    totals = torch.zeros(len(thresholds), 2, dtype=torch.float64)  # right, milliseconds
    for begin in range(0, len(names), BATCH_SIZE):
        part = names[begin : begin + BATCH_SIZE]
        rows = [front_end.read(folder / name) for name, _ in part]
        labels = torch.tensor([KEYWORDS.index(word) if word in KEYWORDS else len(KEYWORDS) for _, word in part])
        frames = torch.nn.utils.rnn.pad_sequence([row.values for row in rows], batch_first=True)
        lengths, sizes = torch.tensor([len(row.values) for row in rows]), torch.tensor([row.size for row in rows])
        inputs, lengths = front_end(frames, lengths)
        activations = trace(network, inputs, lengths).activations
        for k, threshold in enumerate(thresholds):
            steps, label = _answers(activations, lengths, threshold)
            right = label.clamp(max=len(KEYWORDS)) == labels
            totals[k] += torch.stack([right.double().sum(), front_end.heard(steps, sizes).sum()])
    accuracy, heard = (totals / len(names)).T.tolist()
    return {"recordings": len(names), "points": _points(thresholds, accuracy, heard)}


def _answers(activations: Tensor, lengths: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Steps read and label of each row at a threshold; activations are NaN after the end of a row."""
    crossed = activations.nan_to_num(0.0).amax(2) >= threshold
    steps = torch.where(crossed.any(1), crossed.int().argmax(1) + 1, lengths)
    return steps, activations[torch.arange(len(steps)), steps - 1].argmax(1)


def _points(thresholds: Iterable[float], accuracy: Iterable[float], time: Iterable[float]) -> list[dict[str, float]]:
    return [
        {"theta": theta, "accuracy": round(right, 5), "time": round(when, 3)}
        for theta, right, when in zip(thresholds, accuracy, time, strict=True)
    ]


def task_curve(ranked: str, conventional: str) -> dict[str, Any]:
    """Accuracy and steps read of both networks, and of an ideal observer where it is known."""
    task = RunFolder(NETWORKS[ranked]).task()
    generated = hasattr(task, "limit_curves")
    task = replace(task, test_rows=TEST_ROWS) if generated else task
    curve = tradeoff(load(NETWORKS[ranked]), task, THRESHOLDS)
    end = evaluate(load(NETWORKS[conventional]), task, Never())
    limit = [*task.limit_curves().values()][-1] if generated else ([], [])
    return {
        "rows": end.rows,
        "ranked": _points(curve.thresholds, curve.accuracy, curve.mean_steps),
        "conventional": {"accuracy": round(end.accuracy, 5), "time": end.mean_steps},
        "limit": [
            {"accuracy": round(float(right), 5), "time": round(float(steps), 3)}
            for steps, right in sorted(zip(limit[1], limit[0], strict=True))
        ],
    }


def measure(changed: list[str]) -> None:
    """Write the curves of networks that have changed into numbers.json."""
    file = FOLDER / "numbers.json"
    numbers = json.loads(file.read_text()) if file.exists() else {"speech": None, "tasks": {}}
    if SPEECH in changed:
        print("measuring speech …", flush=True)
        numbers["speech"] = speech_curve(load(NETWORKS[SPEECH]), SpeechCommands().folder)
    for name, networks in TASKS.items():
        if set(networks) & set(changed):
            print(f"measuring {name} …", flush=True)
            numbers["tasks"][name] = task_curve(*networks)
    write_whole(file, json.dumps(numbers, indent=1).encode())


def build() -> None:
    """Build the page with Vite; WebAssembly is kept compressed, as it is sent."""
    if (FOLDER / "assets").exists():
        shutil.rmtree(FOLDER / "assets")
    for command in (["npm", "ci"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=SOURCES, check=True)
    for path in (FOLDER / "assets").glob("*.wasm"):
        write_whole(path.with_name(f"{path.name}.gz"), gzip.compress(path.read_bytes(), 9, mtime=0))
        path.unlink()


def main() -> None:
    changed = outdated()
    (FOLDER / "models").mkdir(parents=True, exist_ok=True)
    for name in [name for name in changed if name in NETWORKS]:
        print(f"exporting {name} …", flush=True)
        export_onnx(load(NETWORKS[name]), FOLDER / "models" / f"{name}.onnx", source=NETWORKS[name].name)
    measure(changed)
    build()
    write_whole(FOLDER / "build.json", json.dumps(checksums(), indent=1).encode())
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    print(f"built {FOLDER.relative_to(ROOT)}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
