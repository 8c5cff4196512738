"""The commands of `rankcode`: each a dataclass of its arguments, and `run`."""

from rankcode.commands.bench import Bench
from rankcode.commands.data import Data
from rankcode.commands.evaluate import Evaluate, Tradeoff
from rankcode.commands.predict import Predict
from rankcode.commands.reproduce import Reproduce
from rankcode.commands.train import Resume, Train
from rankcode.demo import Demo

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
