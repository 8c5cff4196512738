"""The commands of `rankcode`: each a dataclass of its arguments, and `run`."""

from rankcode.cli.bench import Bench
from rankcode.cli.data import Data
from rankcode.cli.evaluate import Evaluate, Tradeoff
from rankcode.cli.predict import Predict
from rankcode.cli.reproduce import Reproduce
from rankcode.cli.train import Resume, Train
from rankcode.experiments.demo import Demo

COMMANDS = {
    "demo": Demo,
    "train": Train,
    "resume": Resume,
    "evaluate": Evaluate,
    "tradeoff": Tradeoff,
    "predict": Predict,
    "data": Data,
    "bench": Bench,
    "reproduce": Reproduce,
}
