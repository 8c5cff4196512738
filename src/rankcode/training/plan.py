"""How long to train, and after which batches to validate and to save."""

from __future__ import annotations

from typing import NamedTuple

from rankcode.data.sources import Generated, Loader, Rows, Source
from rankcode.training.config import Training

MIN_UPDATES = 1000  # without epochs or examples: fewer updates than this teach a network little
DEFAULT_EPOCHS = 50
DEFAULT_EXAMPLES = 200_000  # of data without epochs
MAX_BATCHES = 2**53  # above it a float does not hold every batch number
CHECKED_BATCHES = 100  # of generated data: all of it comes from one function, so few batches show whether it is finite
MIN_TELLING_UPDATES = 200  # before that many updates a slow start is nothing to warn about
MIN_BATCHES_PER_RECORD = 20  # without epochs: very small data sets are not validated after every epoch


class Plan(NamedTuple):
    batches: int
    validate_every: int
    save_every: int
    checked_batches: int  # batches whose values are checked, from the first on

    def validates(self, batch: int) -> bool:
        return batch % self.validate_every == 0 or batch == self.batches

    def saves(self, batch: int) -> bool:
        return batch % self.save_every == 0 or batch == self.batches

    def is_halfway(self, batch: int) -> bool:
        """Whether this is the first validation at which a network that learns would have learned something."""
        half = max(MIN_TELLING_UPDATES, self.batches / 2)
        return batch - self.validate_every < half <= batch < self.batches


def make_plan(source: Source, config: Training, processes: int) -> Plan:
    """How many batches there are, and after which of them the model is validated and a checkpoint is written.

    A data loader can only be started at the beginning of an epoch, so its checkpoints are written at the end of one. A
    loader that does not know its length counts as endless.
    """
    epoch = source.epoch(config.batch_size)
    if epoch is None and config.epochs is not None:
        raise ValueError("this data has no epochs: give examples, how many rows to train on")
    batches = _batches(source, epoch, config, processes)
    if not batches <= MAX_BATCHES:
        given = f"epochs={config.epochs:g}" if config.examples is None else f"examples={config.examples:g}"
        raise ValueError(f"{given} is too long: at most 2⁵³ batches can be trained on")
    validate_every = config.validate_every or epoch or 50
    if config.validate_every is None and config.epochs is None and epoch:
        validate_every = epoch * -(-MIN_BATCHES_PER_RECORD // epoch)
    save_every = epoch if epoch and isinstance(source, Loader) else validate_every
    checked = epoch if epoch and isinstance(source, Rows) else batches
    if isinstance(source, Generated):
        checked = CHECKED_BATCHES
    return Plan(int(batches), validate_every, save_every, int(checked))


def _batches(source: Source, epoch: int | None, config: Training, processes: int) -> float:
    batch_size, size = config.batch_size, getattr(source, "size", None)
    if isinstance(source, Loader):  # every process reads its own batch
        batch_size = (getattr(source.loader, "batch_size", None) or batch_size) * processes
    if epoch is not None and config.examples is None:
        if config.epochs is None:
            return epoch * max(DEFAULT_EPOCHS, -(-MIN_UPDATES // epoch))
        batches = config.epochs * epoch
        return max(1, round(batches)) if batches <= MAX_BATCHES else batches
    if epoch is not None and size is not None:  # the last batch of an epoch may be smaller
        epochs, rest = divmod(config.examples or 0, size)
        return epochs * epoch - (-rest // batch_size)
    return -(-(config.examples or DEFAULT_EXAMPLES) // batch_size)
