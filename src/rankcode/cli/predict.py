"""`rankcode predict`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from rankcode.cli.messages import say, say_left_out
from rankcode.cli.names import rule_at
from rankcode.cli.options import Device, Flag
from rankcode.data.sound_files import read_audio
from rankcode.data.sources import BadData
from rankcode.front_ends.audio import Audio
from rankcode.network import Network
from rankcode.prediction import Prediction, predict, predict_file
from rankcode.rules import Rule
from rankcode.saving.run_folder import RunFolder, load
from rankcode.tasks.sound import sound_files
from rankcode.training.distributed import own_device


@dataclass(frozen=True)
class Predict:
    """Print what a trained network answers to sound files, or to the rows of a data file, and when.

    For example:

        rankcode predict runs/gestures-at-spike new.npz
        rankcode predict runs/speech-commands-at-spike one.wav recordings/ --json
        rankcode predict model.safetensors new.npz --threshold 0.99
    """

    model: str
    """Folder of a run, or a model file."""
    files: tuple[str, ...]
    """Sound files, folders of them, or .npz, .ts, .tsv and .arff files, as the network was trained on."""
    _: KW_ONLY
    threshold: float | None = None
    """θ to answer at. Default: that of the training; 0.95 where it had none."""
    skip_bad: Flag = False
    """Leave out files and rows that cannot be used, and name them."""
    device: Device = "auto"
    json: Flag = False
    """Print a line of JSON for each answer instead of a table."""

    def run(self) -> None:
        if Path(self.model).is_dir() and self.threshold is None:
            RunFolder(self.model).rule()  # refuses a rule that only Python can use
        network = load(self.model).to(own_device(self.device))
        rule = None if self.threshold is None else rule_at(self.threshold, network)
        answered = 0
        for place, answer in self._answers(network, rule):
            answered += 1
            if self.json:
                print(json.dumps({"from": place, **answer._asdict()}))
                continue
            if answered == 1:
                say("answer         probability   steps   heard   from")
            heard = "" if answer.milliseconds is None else f"{answer.milliseconds:.0f} ms"
            silent = "" if answer.fired else "  (did not fire)"
            say(f"{answer.label:<14} {answer.probability:11.3f}   {answer.steps:5}  {heard:>7}  {place}{silent}")
        if answered == 0:
            raise ValueError("there was nothing to answer to")

    def _answers(self, network: Network, rule: Rule | None) -> Iterator[tuple[str, Prediction]]:
        if not isinstance(network.front_end, Audio):
            for file in self.files:
                skipped: list[str] | None = [] if self.skip_bad else None
                answers = self._usable(lambda file, bad=skipped: predict_file(network, file, rule, bad), [Path(file)])
                say_left_out(skipped or ())
                for _, found in answers:
                    yield from found
            return
        files = [file for name in self.files for file in _sound_files(Path(name))]
        rate = network.front_end.log_mel.sample_rate
        for first in range(0, len(files), 64):
            waveforms = self._usable(lambda file: read_audio(file, rate), files[first : first + 64])
            if waveforms:
                places, values = zip(*waveforms, strict=True)
                yield from zip(map(str, places), predict(network, values, rule), strict=True)

    def _usable(self, read: Callable[[Path], Any], files: list[Path]) -> list[tuple[Path, Any]]:
        """Each file and what was read of it; one that cannot be used is an error, or left out and named."""
        found = []
        for file in files:
            try:
                found.append((file, read(file)))
            except (BadData, FileNotFoundError) as error:
                if not self.skip_bad:
                    hint = "" if "--skip-bad" in str(error) else "; --skip-bad goes on without"
                    raise type(error)(f"{error}{hint}") from None
                say_left_out([str(error)])
        return found


def _sound_files(path: Path) -> list[Path]:
    """The sound files in a folder; a file as it is."""
    if not path.is_dir():
        return [path]
    found = [path / name for name in sound_files(path)]
    if not found:
        raise ValueError(f"there is no sound file in {path}")
    return found
