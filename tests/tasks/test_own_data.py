import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.data.sources import BadData
from rankcode.front_ends import Audio, Standardise
from rankcode.saving.run_folder import RunFolder
from rankcode.tasks import OwnData, rows_for
from rankcode.tasks.own_data import in_order
from wav_files import tone

UCR = Path(__file__).parents[3] / "shared" / "data" / "ucr"
SPLITS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def features_are_kept_here(monkeypatch, tmp_path_factory):
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path_factory.mktemp("data")))


def saved(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def numbered(path, counts, steps=4):
    """A file whose row r is r, r, …; `counts` says how many rows each label has, in turn."""
    labels = [label for label, count in counts.items() for _ in range(count)]
    values = np.repeat(np.arange(len(labels), dtype=np.float32)[:, None], steps, 1)
    return saved(path, X=values, y=np.array(labels))


def which(task, split):
    """Numbers of the rows of a split, as they are stored."""
    source = getattr(task, split)
    return source.values[source.offsets, 0].long().tolist()


def content(task, split):
    """What a split holds: (values before they are standardised, name) of each row."""
    source = getattr(task, split)
    return [
        (source.values[at : at + length].tolist(), task.label_names[label])
        for at, length, label in zip(
            source.offsets.tolist(), source.lengths.tolist(), source.labels.tolist(), strict=True
        )
    ]


def tones(folder, counts):
    for word, count in counts.items():
        for number in range(count):
            tone(folder / word / f"{number}.wav", 300 + 40 * len(word) + 7 * number)
    return str(folder)


def says(call, *parts, error=BadData):
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


# Arrays


def test_arrays_give_the_task_of_a_file_that_holds_them(tmp_path):
    random = np.random.default_rng(0)
    values, lengths = random.normal(size=(30, 9, 3)).astype(np.float32), random.integers(2, 10, 30)
    labels = np.array(["c", "a", "b"] * 10)
    expected = OwnData(saved(tmp_path / "data.npz", X=values, y=labels, lengths=lengths), split_seed=3)
    rows = [row[:length] for row, length in zip(values, lengths, strict=True)]
    for task in (
        OwnData.of(values, labels, lengths, split_seed=3),
        OwnData.of(torch.from_numpy(values), labels.tolist(), torch.from_numpy(lengths), split_seed=3),
        OwnData.of(rows, labels.astype(object), split_seed=3),
        OwnData.of([row.tolist() for row in rows], labels, split_seed=3),
    ):
        assert (task.label_names, task.input_shape) == (("a", "b", "c"), (3,))
        assert all(content(task, split) == content(expected, split) for split in SPLITS)
        assert task.front_end == expected.front_end


def test_arrays_of_one_value_a_step_and_splits_that_are_given():
    values, labels = np.arange(20.0)[:, None], np.arange(20) % 2
    test = ([[50.0, 51.0], [60.0]], [0, 1])
    task = OwnData.of(values, labels, validation=(values + 30, labels), test=test)
    assert which(task, "train") == list(range(20)) and which(task, "validation") == list(range(30, 50))
    assert content(task, "test") == [([[50], [51]], "0"), ([[60]], "1")]
    for given, missing in (({"test": test}, "validation"), ({"validation": test}, "test")):
        task = OwnData.of(values, labels, **given)
        assert len(which(task, missing)) == 4 and sorted(which(task, "train") + which(task, missing)) == list(range(20))


def test_bad_rows_of_arrays_are_named_or_left_out_and_listed():
    values = np.arange(40.0).reshape(20, 2)
    values[7, 1] = math.inf
    says(lambda: OwnData.of(values, np.arange(20) % 2), "X[7] of train", "infinite")
    task = OwnData.of(values, np.arange(20) % 2, skip_bad=True)
    assert sum(getattr(task, split).size for split in SPLITS) == 19
    assert len(task.left_out) == 1 and "X[7] of train" in task.left_out[0]


# Names of the classes


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "C"], ("C", "a", "b")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        ([10, 9, 2], ("2", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1e1", "2.5", "-inf"], ("-inf", "2.5", "1e1")),
        ([True, False], ("False", "True")),
    ],
)
def test_classes_have_the_users_names_in_order_of_number_or_name(labels, names, tmp_path):
    labels = np.array(labels * 4)
    path = saved(tmp_path / "data.npz", X=np.random.default_rng(0).normal(size=(len(labels), 3)), y=labels)
    task = OwnData(path)
    assert task.label_names == names and task.num_classes == len(names)
    total = Counter(name for split in SPLITS for _, name in content(task, split))
    assert total == dict.fromkeys(names, 4)


def test_names_of_the_same_value_are_in_an_order_too():
    names = {"0" * zeros + "1" for zeros in range(8)}
    assert in_order(names) == tuple(sorted(names))


# Splits


COUNTS = {"a": 50, "b": 20, "c": 5}


def test_splits_are_made_of_every_class_and_hold_every_row_once(tmp_path):
    task = OwnData(numbered(tmp_path / "data.npz", COUNTS))
    rows = {split: which(task, split) for split in SPLITS}
    assert sorted(rows["train"] + rows["validation"] + rows["test"]) == list(range(75))
    names = {split: Counter("a" if n < 50 else "b" if n < 70 else "c" for n in rows[split]) for split in SPLITS}
    assert names["test"] == {"a": 10, "b": 4, "c": 1}
    assert names["validation"] == {"a": 8, "b": 3, "c": 1}
    assert names["train"] == {"a": 32, "b": 13, "c": 3}
    assert all(found == sorted(found) for found in rows.values())


def test_splits_are_the_seeds_and_no_other(tmp_path):
    path = numbered(tmp_path / "data.npz", COUNTS)
    torch.manual_seed(0)
    np.random.seed(0)
    first = [which(OwnData(path), split) for split in SPLITS]
    torch.manual_seed(1)
    np.random.seed(1)
    assert [which(OwnData(path), split) for split in SPLITS] == first
    others = [[which(OwnData(path, split_seed=seed), split) for split in SPLITS] for seed in (1, 2)]
    assert len({tuple(splits[1]) for splits in [first, *others]}) == 3
    assert len({tuple(splits[2]) for splits in [first, *others]}) == 3


def test_shares(tmp_path):
    task = OwnData(numbered(tmp_path / "data.npz", {"a": 40, "b": 40}), validation_share=0.5, test_share=0.25)
    assert [len(which(task, split)) for split in SPLITS] == [30, 30, 20]
    for share in (0, 1, -0.1, 1.5, math.nan):
        says(lambda share=share: OwnData("x", test_share=share), "test_share", "between 0 and 1", error=ValueError)
        says(lambda share=share: OwnData("x", validation_share=share), "validation_share", error=ValueError)


def test_a_class_with_one_example_stays_in_training(tmp_path):
    task = OwnData(numbered(tmp_path / "data.npz", {"many": 20, "one": 1, "two": 2}))
    assert 20 in which(task, "train") and task.label_names == ("many", "one", "two")
    assert 20 not in which(task, "validation") + which(task, "test")
    assert len({21, 22} & set(which(task, "train"))) == 1 == len({21, 22} & set(which(task, "test")))


# What cannot be used


def split_file(folder, **labels):
    arrays = {}
    for split, names in labels.items():
        arrays[f"X_{split}"] = 100.0 * SPLITS.index(split) + np.arange(len(names), dtype=np.float32)[:, None]
        arrays[f"y_{split}"] = np.array(list(names))
    return saved(folder / "data.npz", **arrays)


def test_only_one_class_in_training(tmp_path):
    path = split_file(tmp_path, train="aaaa", test="ab")
    says(lambda: OwnData(path, skip_bad=True).train, "only one class, 'a'")


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_label_that_training_does_not_have(split, tmp_path):
    labels = {"train": "ababab", "validation": "abab", "test": "abab"}
    labels[split] = "aXbXY"
    path = split_file(tmp_path, **labels)
    says(lambda: OwnData(path).train, "data.npz", f"label 'X' of the {split} split", "skip_bad=True")
    task = OwnData(path, skip_bad=True)
    assert task.label_names == ("a", "b")
    first = 100 * SPLITS.index(split)
    assert which(task, split) == [first, first + 2] and getattr(task, split).labels.tolist() == [0, 1]
    assert which(task, "train") == list(range(6))
    assert [line.split(": ")[1].split(",")[0] for line in task.left_out] == [
        "2 rows with the label 'X'",
        "1 rows with the label 'Y'",
    ]
    assert all("data.npz" in line and "\n" not in line for line in task.left_out)


def test_no_such_path(tmp_path, monkeypatch):
    for name in ("nowhere", "nowhere.npz"):
        says(lambda name=name: OwnData(str(tmp_path / name)).train, name, "no file or folder", error=FileNotFoundError)
    monkeypatch.chdir(tmp_path)
    two_levels(Path("data.npz"))
    says(lambda: OwnData(""), "path must name a file or a folder", error=ValueError)
    assert OwnData(".").train.size


@pytest.mark.parametrize("name", ["notes.txt", "one.wav", "table.xls"])
def test_a_file_of_something_else(name, tmp_path):
    tone(tmp_path / name, 300)
    says(lambda: OwnData(str(tmp_path / name)).train, name, ".parquet, .csv, .npy files")


def test_a_table_among_folders_of_sounds_is_not_the_data(tmp_path):
    tones(tmp_path / "sounds", {"deep": 5, "high": 5})
    (tmp_path / "sounds" / "metadata.csv").write_text("file,label\na.wav,deep\n")
    task = OwnData(str(tmp_path / "sounds"))
    assert task.label_names == ("deep", "high") and task.columns is None


def test_tables(tmp_path):
    lines = [f"{row},{step},{row % 2 + step / 8},up-{row % 2}\n" for step in range(4) for row in range(20)]
    (tmp_path / "moves.csv").write_text("id,time,x,gesture\n" + "".join(lines))
    task = OwnData(str(tmp_path / "moves.csv"), label="gesture")
    assert [getattr(task, split).size for split in SPLITS] == [12, 4, 4] and task.label_names == ("up-0", "up-1")
    assert all(values[1][0] - values[0][0] == 1 / 8 for values, _ in content(task, "train"))
    assert task.columns is not None and (task.columns.label, task.columns.guessed) == ("gesture", False)
    form = "; long form with id 'id', time 'time' and values 'x'; label column 'gesture'"
    assert task.summary().endswith(form) and "4 steps of 1 value;" in task.summary()
    assert (task.front_end.label_column, task.front_end.channel_names) == ("gesture", ("x",))
    says(lambda: OwnData(str(tmp_path / "moves.csv")).train, "which column holds the labels: label=…")
    says(lambda: OwnData(str(tmp_path / "moves.csv"), label="move").train, "it has no column 'move'")
    arrays = OwnData(numbered(tmp_path / "data.npz", COUNTS), label="gesture")
    says(
        lambda: arrays.train,
        "label='gesture' names a column of a .csv or .parquet file",
        "data.npz is neither",
        error=ValueError,
    )


def test_altering_what_is_not_sound(tmp_path):
    task = OwnData(numbered(tmp_path / "data.npz", COUNTS), augment=True)
    says(lambda: task.train, "augment=True is for sound", error=ValueError)


# Missing values and the scale of training


def test_a_missing_value_repeats_the_last_and_at_the_beginning_is_the_training_mean(tmp_path):
    train = np.array([[4.0, 8.0, 6.0], [6.0, 4.0, 8.0]] * 3)  # mean 6
    test = np.array([[np.nan, 8.0, np.nan], [np.nan, np.nan, 3.0]])
    path = saved(tmp_path / "data.npz", X_train=train, y_train=[0, 1] * 3, X_test=test, y_test=[0, 1])
    task = OwnData(path)
    deviation = math.sqrt(8 / 3)
    assert task.front_end.mean == pytest.approx((6,)) and task.front_end.std == pytest.approx((deviation,))
    batch = next(task.test.scan(2, "cpu"))
    assert batch.lengths.tolist() == [2, 3]  # what is missing at the end was never there
    assert batch.inputs[0, :2, 0].tolist() == pytest.approx([0, 2 / deviation])
    assert batch.inputs[1, :, 0].tolist() == pytest.approx([0, 0, -3 / deviation])


def test_the_scale_is_not_that_of_rows_set_aside_here(tmp_path):
    path = numbered(tmp_path / "data.npz", COUNTS)
    rows = which(OwnData(path), "train")
    assert OwnData(path).front_end.mean == pytest.approx((np.mean(rows),))
    assert OwnData(path).front_end.std == pytest.approx((np.std(rows),))
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["X"][which(OwnData(path), "test") + which(OwnData(path), "validation")] += 1e6
    changed = OwnData(saved(tmp_path / "changed.npz", **arrays))
    assert changed.front_end == OwnData(path).front_end


# Sound


def test_a_folder_of_sound_for_each_class(tmp_path):
    task = OwnData(tones(tmp_path / "words", {"yes": 5, "maybe": 10}))
    assert task.label_names == ("maybe", "yes") and task.input_shape == (420,)
    assert isinstance(task.front_end, Audio) and task.front_end.context == 10
    assert [getattr(task, split).size for split in SPLITS] == [9, 3, 3]
    names = [name for split in SPLITS for name in getattr(task, split).names]
    assert len(set(names)) == 15
    for split in SPLITS:
        source = getattr(task, split)
        assert [task.label_names[label] for label in source.labels] == [name.split("/")[0] for name in source.names]
        inputs, _, lengths = next(source.scan(99, "cpu"))
        assert inputs.shape == (source.size, 11, 420) and lengths.tolist() == [11] * source.size
    assert (tmp_path / "words").exists() and not list(tmp_path.rglob("frames.u8")), "nothing is written beside the data"


def test_background_noise_is_no_class(tmp_path):
    tones(tmp_path, {"yes": 5, "no": 5, "_background_noise_": 2})
    task = OwnData(str(tmp_path), augment=True)
    assert task.label_names == ("no", "yes") and sum(getattr(task, split).size for split in SPLITS) == 10
    assert task.left_out == []
    assert task.train.augment is not None and task.train.augment.noise.shape == (2 * 31, 20)
    assert task.validation.augment is None and task.test.augment is None
    plain = next(OwnData(str(tmp_path)).train.batches(6, 0, "cpu"))
    altered = next(task.train.batches(6, 0, "cpu"))
    assert altered.labels.equal(plain.labels) and not altered.inputs.equal(plain.inputs)


# Training


SMALL = rc.Training(examples=300, batch_size=16, validate_every=5, learning_rate=0.01, device="cpu", progress=False)


def two_levels(path, rows=60):
    """Class low is about 0, class high about 3."""
    random = np.random.default_rng(0)
    labels = np.array(["low", "high"] * (rows // 2))
    values = random.normal(size=(rows, 8)).astype(np.float32) + 3 * (labels == "high")[:, None]
    return saved(path, X=values, y=labels)


def test_training_gives_the_network_its_front_end_and_names(tmp_path):
    task = OwnData(two_levels(tmp_path / "data.npz"))
    network = rc.Network(rc.cells.GRU(1, 4), 1)
    rc.fit(network, task, rc.AtSpike(0.9), SMALL)
    assert network.front_end == task.front_end and network.label_names == ("high", "low")
    report = rc.evaluate(network, task, rc.Threshold(0.9))
    assert [each.name for each in report.classes] == ["high", "low"]
    assert report.accuracy > 0.8 and report.milliseconds is None


def test_a_run_describes_its_data_and_is_not_resumed_when_it_has_changed(tmp_path):
    path = two_levels(tmp_path / "data.npz")
    config = rc.Training(**{**vars(SMALL), "folder": str(tmp_path / "run")})
    rc.fit(rc.Network(rc.cells.GRU(1, 4), 1), OwnData(Path(path)), rc.AtSpike(0.9), config)
    written = RunFolder(tmp_path / "run").config()
    task = OwnData(path, fingerprint=written["task"]["fingerprint"])
    assert written["task"] == {"kind": "OwnData", **vars(task)} and RunFolder(tmp_path / "run").task() == task
    scale = {"mean": list(task.front_end.mean), "std": list(task.front_end.std)}
    scale |= {"label_column": None, "channel_names": []}  # of tables alone
    assert written["network"]["front_end"] == {"kind": "Standardise", **scale}
    assert written["network"]["label_names"] == ["high", "low"]
    two_levels(tmp_path / "data.npz", rows=40)
    config = rc.Training(**{**vars(config), "resume": True})
    says(
        lambda: rc.fit(rc.Network(rc.cells.GRU(1, 4), 1), OwnData(path), rc.AtSpike(0.9), config),
        "other settings: task.fingerprint is",
        error=ValueError,
    )
    written = OwnData(path, fingerprint=written["task"]["fingerprint"])
    says(lambda: written.test, "data.npz is no longer what was trained on", "rows_for")


# Rows for a network that is there already


def taught(names, front_end):
    network = rc.Network(rc.cells.GRU(front_end.output_shape[0], 4), len(names))
    network.label_names, network.front_end = tuple(names), front_end
    return network


def test_other_data_is_read_with_the_networks_front_end_and_names(tmp_path):
    network = taught(["stop", "go"], Standardise((100.0,), (10.0,)))
    path = saved(tmp_path / "other.npz", X=np.array([[90.0, 130.0], [np.nan, 100.0]]), y=["go", "stop"])
    inputs, labels, lengths = next(rows_for(network, path).scan(9, "cpu"))
    assert inputs[..., 0].tolist() == [[-1, 3], [0, 0]]
    assert labels.tolist() == [1, 0] and lengths.tolist() == [2, 2]


def test_all_rows_count_whatever_their_split(tmp_path):
    network = taught("abc", Standardise((0.0,), (1.0,)))
    path = split_file(tmp_path, train="ab", validation="ba", test="bb")
    source = rows_for(network, Path(path))
    assert source.labels.tolist() == [0, 1, 1, 0, 1, 1]
    assert [row[0, 0].item() for row in next(source.scan(9, "cpu")).inputs] == [0, 1, 100, 101, 200, 201]


def test_a_file_counts_for_itself(tmp_path):
    for split, label in (("TRAIN", "a"), ("TEST", "b")):
        (tmp_path / f"Mine_{split}.tsv").write_text(f"{label}\t1\t2\n")
    network = taught("ab", Standardise((0.0,), (1.0,)))
    assert rows_for(network, tmp_path / "Mine_TEST.tsv").labels.tolist() == [1]
    assert rows_for(network, tmp_path).labels.tolist() == [0, 1]


def test_a_label_the_network_was_not_taught_is_its_unknown_class(tmp_path):
    path = saved(tmp_path / "other.npz", X=np.ones((4, 2)), y=["no", "what", "unknown", "yes"])
    network = taught(["yes", "no", "unknown"], Standardise((0.0,), (1.0,)))
    assert rows_for(network, path).labels.tolist() == [1, 2, 2, 0]


def test_a_label_the_network_was_not_taught_is_named_or_left_out(tmp_path):
    path = saved(tmp_path / "other.npz", X=np.arange(4.0)[:, None], y=["no", "what", "yes", "what"])
    network = taught(["yes", "no"], Standardise((0.0,), (1.0,)))
    says(lambda: rows_for(network, path), "other.npz", "not trained on the label 'what'", "skip_bad=True")
    source = rows_for(network, path, skip_bad=True)
    assert source.labels.tolist() == [1, 0]
    assert len(source.left_out) == 2 and all("other.npz" in line and "'what'" in line for line in source.left_out)
    assert next(source.scan(9, "cpu")).inputs.flatten().tolist() == [0, 2]
    strangers = taught(["left", "right"], Standardise((0.0,), (1.0,)))
    says(lambda: rows_for(strangers, path, skip_bad=True), "other.npz", "no row with a label")


def test_sound_for_a_network_that_reads_sound(tmp_path):
    folder = tones(tmp_path, {"yes": 2, "what": 1, "_background_noise_": 1})
    network = taught(["yes", "unknown"], Audio((1.0,) * 20, (2.0,) * 20, context=3))
    source = rows_for(network, folder)
    assert source.labels.tolist() == [1, 0, 0]  # what, yes, yes
    assert next(source.scan(9, "cpu")).inputs.shape == (3, 31 - 6, 7 * 20)
    assert rc.evaluate(network, source, rc.FireAt([1, 2, 3])).milliseconds == pytest.approx(60 + 12.5 + 10)


def test_data_that_the_network_does_not_read_is_named(tmp_path):
    folder = tones(tmp_path / "words", {"a": 2, "b": 2})
    path = numbered(tmp_path / "data.npz", {"a": 3, "b": 3})
    wide = saved(tmp_path / "wide.npz", X=np.ones((4, 2, 3)), y=["a", "b"] * 2)
    series, sound = taught("ab", Standardise((0.0,), (1.0,))), taught("ab", Audio((0.0,) * 20, (1.0,) * 20))
    says(lambda: rows_for(series, folder), "reads series", "holds sound")
    says(lambda: rows_for(sound, path), "reads sound", "holds series")
    says(lambda: rows_for(series, wide), "reads series of 1 value a step", "wide.npz holds series of 3 values")
    says(lambda: rows_for(rc.Network(rc.cells.GRU(1, 2), 2), path), "no front end", error=ValueError)


# Published sets


@pytest.mark.skipif(not UCR.exists(), reason="the UCR archive is not on this machine")
@pytest.mark.parametrize(
    ("name", "sizes", "features", "classes", "longest"),
    [
        ("ItalyPowerDemand", (53, 14, 1029), 1, ("1", "2"), 24),
        ("BasicMotions", (32, 8, 40), 6, ("Badminton", "Running", "Standing", "Walking"), 100),
        ("JapaneseVowels", (216, 54, 370), 12, tuple("123456789"), 29),
    ],
)
def test_real_data(name, sizes, features, classes, longest):
    task = OwnData(str(UCR / name))
    assert tuple(getattr(task, split).size for split in SPLITS) == sizes
    assert (task.input_shape, task.label_names) == ((features,), classes)
    assert max(int(getattr(task, split).lengths.max()) for split in SPLITS) == longest
    inputs, _, lengths = next(task.train.scan(999, "cpu"))
    read = torch.arange(inputs.shape[1]) < lengths[:, None]
    assert inputs[read].mean(0).abs().max() < 1e-4 and (inputs[read].std(0) - 1).abs().max() < 0.01


# Fingerprints


ROWS, ROW_LABELS = np.random.default_rng(0).normal(size=(30, 6)), np.arange(30) % 2


def given_splits(values, labels):
    """With splits of their own, so that nothing else of a run changes with the order of rows."""
    return OwnData.of(values, labels, validation=(ROWS[:6], ROW_LABELS[:6]), test=(ROWS[6:12], ROW_LABELS[6:12]))


def test_a_run_is_not_resumed_on_other_arrays(tmp_path):
    def train(labels, resume):
        torch.manual_seed(0)
        config = rc.Training(**{**vars(SMALL), "folder": str(tmp_path / "run"), "resume": resume})
        rc.fit(rc.Network(rc.cells.GRU(1, 4), 1), given_splits(ROWS, labels), rc.AtSpike(0.9), config)

    train(ROW_LABELS, resume=False)
    says(lambda: train(1 - ROW_LABELS, resume=True), "other settings: task.fingerprint is", error=ValueError)
    train(ROW_LABELS, resume=True)


def test_reading_the_data_changes_neither_hash_nor_equality(tmp_path):
    path = two_levels(tmp_path / "data.npz")
    task, kept = OwnData(path), {OwnData(path): "kept"}
    before = hash(task)
    assert task.train.size and task.fingerprint != ""
    assert hash(task) == before and task == OwnData(path) and kept[task] == "kept"


# Few rows


def test_eighteen_classes_of_one_row_each_are_trained_on():
    values = np.random.default_rng(0).normal(size=(18, 6))
    task = OwnData.of(values, np.arange(18))
    assert task.train.size == 18 and task.num_classes == 18
    assert task.validation is None and task.test is None
    assert "18 training, 0 validation, 0 test rows" in task.summary() and "keeps the last weights" in task.summary()
    network = rc.Network(rc.cells.GRU(1, 4), 18)
    history = rc.fit(network, task, rc.AtSpike(0.9), rc.Training(examples=36, device="cpu", progress=False))
    assert history.best is None and len(history.records) > 0
    says(lambda: rc.evaluate(network, task), "own-data has no test split", error=ValueError)


def test_validation_lacks_the_classes_of_one_row():
    values = np.random.default_rng(0).normal(size=(20, 6))
    task = OwnData.of(values, [*range(10), *[0] * 10], test=(values[:10], range(10)))
    assert task.train.labels.unique().tolist() == list(range(10))
    assert task.validation.labels.unique().tolist() == [0]
    assert "no class" not in task.summary()


# Paths and layouts


def test_a_layout_that_is_given_is_kept_with_the_run(tmp_path):
    values = np.random.default_rng(0).normal(size=(20, 1, 30))
    path = saved(tmp_path / "aeon.npz", X=values, y=np.arange(20) % 2)
    says(
        lambda: OwnData(path).train, "aeon.npz: X of the train split has 1 step of 30 values", 'layout="channels-first"'
    )
    task = OwnData(path, layout="channels-first")
    assert task.input_shape == (1,) and task.summary().endswith("; 30 steps of 1 value")
    assert OwnData(path, layout="steps-first").input_shape == (30,)
    says(lambda: OwnData(path, layout="rows"), "layout must be", error=ValueError)
    config = rc.Training(**{**vars(SMALL), "folder": str(tmp_path / "run")})
    network = rc.Network(rc.cells.GRU(1, 4), 2)
    rc.fit(network, task, rc.AtSpike(0.9), config)
    again = RunFolder(tmp_path / "run").task()
    assert again == task and again.test.size == task.test.size
    assert rows_for(network, path).lengths.tolist() == [30] * 20
    assert [each.steps for each in rc.predict(network, path, rc.Never())] == [30] * 20


def test_all_splits_share_one_tensor(tmp_path):
    for task in (OwnData(two_levels(tmp_path / "data.npz")), OwnData(tones(tmp_path / "words", {"yes": 6, "no": 6}))):
        assert task.train.values is task.validation.values is task.test.values
