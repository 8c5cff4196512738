"""Small sets of series in files, as the tests of the comparison read them."""

import numpy as np

from rankcode.data.series_files import Options, read_series


def write_set(folder, name="Levels", rows=24, steps=12, seed=0):
    """Two classes, "1" about 0 and "2" about 3 from the third step on, in NAME_TRAIN.tsv and NAME_TEST.tsv."""
    place = folder / name
    place.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for split in ("TRAIN", "TEST"):
        labels = np.arange(rows) % 2
        values = random.normal(size=(rows, steps))
        values[:, 2:] += 3 * labels[:, None]
        np.savetxt(place / f"{name}_{split}.tsv", np.column_stack([labels + 1, values]), delimiter="\t", fmt="%.6g")
    return place


def splits(place):
    found = read_series(place, Options())
    return found["train"], found["test"]
