"""How long to train, and after which batches to validate and to save."""

from __future__ import annotations

from typing import NamedTuple

from rankcode.data.sources import Generated, Loader, Rows, Source
from rankcode.training.config import Training

UPDATES = 1000  # at least, where nothing is said about how long to train
LOOKED_AT = 100  # batches of generated data in which NaN and infinity are looked for


class Plan(NamedTuple):
    batches: int
    validate_every: int
    save_every: int
    unseen: int  # batches until the data has been looked at

    def validates(self, batch: int) -> bool:
        return batch % self.validate_every == 0 or batch == self.batches

    def saves(self, batch: int) -> bool:
        return batch % self.save_every == 0 or batch == self.batches


def make_plan(source: Source, config: Training, processes: int) -> Plan:
    """How many batches there are, and after which ones the model is validated and a checkpoint written.

    A data loader can only be started at the beginning of an epoch, so its checkpoints are written at the
    end of one; one that does not know its length counts as an endless stream.
    """
    epoch, size = source.epoch(config.batch_size), getattr(source, "size", None)
    batch_size = config.batch_size
    if isinstance(source, Loader):  # every process reads a batch of its own
        batch_size = (getattr(source.loader, "batch_size", None) or batch_size) * processes
    if epoch is None and config.epochs is not None:
        raise ValueError("this data has no epochs: give examples, how many rows to train on")
    if epoch is not None and config.examples is None:
        # A small data set needs more than 50 epochs: it is the number of updates that counts.
        batches = max(1, round((config.epochs or max(50, -(-UPDATES // epoch))) * epoch))
    elif epoch is not None and size is not None:  # the last batch of an epoch may be smaller
        epochs, rest = divmod(config.examples or 0, size)
        batches = epochs * epoch - (-rest // batch_size)
    else:
        batches = -(-(config.examples or 200_000) // batch_size)
    validate_every = config.validate_every or (epoch or 50) * (
        -(-20 // epoch) if epoch and config.epochs is None else 1
    )
    save_every = epoch if epoch and isinstance(source, Loader) else validate_every
    unseen = epoch if epoch and isinstance(source, Rows) else batches
    if isinstance(source, Generated):  # all of it comes from one function
        unseen = LOOKED_AT
    return Plan(batches, validate_every, save_every, unseen)
