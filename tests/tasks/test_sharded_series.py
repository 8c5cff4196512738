"""Series in many files are the rows of one file; they are read once, into a cache that is mapped."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import rankcode as rc
from rankcode.cli.main import main
from rankcode.data.sources import BadData
from rankcode.tasks import OwnData, rows_for, sharded_series
from rankcode.training import series_model

pandas = pytest.importorskip("pandas")
RANDOM = np.random.default_rng(0)
LABELS = np.array(["low", "high", "rest"] * 40)
VALUES = (RANDOM.normal(size=(120, 9, 2)) + 0.5 * (LABELS == "high")[:, None, None]).astype(np.float32)
PARTS = np.array_split(np.arange(120), 11)


@pytest.fixture(autouse=True)
def kept_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKCODE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def long_frame(rows, names=str):
    """A record for each step."""
    steps = VALUES.shape[1]
    columns = {"id": np.repeat([names(row) for row in rows], steps), "time": np.tile(np.arange(steps), len(rows))}
    columns |= {"u": VALUES[rows, :, 0].ravel(), "v": VALUES[rows, :, 1].ravel()}
    return pandas.DataFrame(columns | {"label": np.repeat(LABELS[rows], steps)})


def write(path, rows):
    """Some rows in the format that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, X=VALUES[rows], y=LABELS[rows])
    elif path.suffix == ".npy":
        np.save(path, VALUES[rows])
        np.save(path.with_name(f"{path.stem}_labels.npy"), LABELS[rows])
    elif path.suffix == ".csv":
        long_frame(rows).to_csv(path, index=False)
    else:
        long_frame(rows).to_parquet(path)


def sharded(name, parts=PARTS):
    """`name` is the path of a shard, with the number in braces; the path of the folder."""
    for number, rows in enumerate(parts):
        write(Path(name.format(number)), rows)
    return name.split("/")[0]


def same(one, other):
    assert one.collection.fingerprint() == other.collection.fingerprint()
    assert (one.label_names, one.front_end, one.columns) == (other.label_names, other.front_end, other.columns)
    for split in ("train", "validation", "test"):
        rows, expected = getattr(one, split), getattr(other, split)
        for found, wanted in zip(rows.scan(50, "cpu"), expected.scan(50, "cpu"), strict=True):
            assert all(a.equal(b) for a, b in zip(found, wanted, strict=True))


SPARK = "part-{:05}-2f1c7f0e-6d9a-4c5e-9b41-0c7d9a1f3e55-c000.snappy.parquet"
NAMES = ["part-{}.npz", "X.{}.npy", "gestures_{:03}.csv", "train-{:05}-of-00011.parquet", SPARK]


@pytest.mark.parametrize("name", NAMES)
def test_shards_are_the_rows_of_one_file(name, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    whole = tmp_path / f"whole{Path(name).suffix}"
    write(whole, np.arange(120))
    folder = sharded(f"shards/{name}")
    same(OwnData(folder), OwnData(str(whole)))
    (cache,) = (tmp_path / "data" / "features").iterdir()
    assert {file.name for file in cache.iterdir()} == {"index.jsonl", "frames.f32"}


def test_a_training_on_shards_is_that_on_one_file(tmp_path, capsys):
    write(tmp_path / "whole.npz", np.arange(120))
    flags = ["--model", "recurrent", "--hidden-size", "4", "--epochs", "2", "--device", "cpu", "--no-progress"]
    main(["train", "whole.npz", *flags, "--folder", "one"])
    main(["train", sharded("shards/part-{}.npz"), *flags, "--folder", "many"])
    one, many = rc.load("one").state_dict(), rc.load("many").state_dict()
    assert all(one[name].equal(many[name]) for name in one)
    capsys.readouterr()
    reports = []
    for data in ("whole.npz", "shards"):
        main(["evaluate", "many", "--on", data])
        reports.append(capsys.readouterr().out.replace(data, "DATA"))
    assert reports[0] == reports[1] and "%" in reports[0]
    answers = [rc.predict(rc.load("many"), data) for data in ("whole.npz", "shards")]
    assert answers[0] == answers[1] and len(answers[0]) == 120


def test_series_that_are_too_large_to_be_fitted_at_once(monkeypatch):
    monkeypatch.setattr(series_model, "physical_memory", lambda: 8 * VALUES.nbytes / 2)
    with pytest.raises(SystemExit, match="shards: fitting takes about 0 GB: use --model recurrent"):
        main(["train", sharded("shards/part-{}.npz"), "--no-progress"])
    assert not Path("runs").exists()


def test_splits_by_folder_and_by_name():
    parts = np.split(np.arange(120), 4)
    for number, rows in enumerate(parts):
        write(Path("folders") / ("test" if number == 3 else "train") / f"part-{number}.npz", rows)
        write(Path("names") / f"set_{'TEST' if number == 3 else 'TRAIN'}-{number}.npz", rows)
    np.savez("whole.npz", X=VALUES[:90], y=LABELS[:90], X_test=VALUES[90:], y_test=LABELS[90:])
    for folder in ("folders", "names"):
        same(OwnData(folder), OwnData("whole.npz"))
    Path("list.txt").write_text("".join(f"{path}\n" for path in sorted(Path("folders").glob("*/*.npz"))[::-1]))
    assert OwnData("list.txt").test.labels.tolist() == OwnData("whole.npz").test.labels.tolist()


def test_a_list_of_files_with_any_names():
    for name, rows in zip(("monday", "tuesday", "friday"), np.split(np.arange(120), 3), strict=True):
        write(Path("days") / f"{name}.csv", rows)
    with pytest.raises(BadData, match=r"which of its files is meant.*part-000.csv"):
        _ = OwnData("days").collection
    Path("days/list.txt").write_text("# in this order\nmonday.csv\ntuesday.csv\nfriday.csv\n")
    write(Path("whole.csv"), np.arange(120))
    same(OwnData("days/list.txt"), OwnData("whole.csv"))
    Path("days/list.txt").write_text("monday.csv\nsunday.csv\n")
    with pytest.raises(BadData, match=r"list.txt lists .*sunday.csv, which is not a file of series"):
        _ = OwnData("days/list.txt").collection


def test_shards_are_read_once_and_again_if_one_has_changed(monkeypatch):
    folder, read = sharded("shards/part-{}.npy"), []
    real = sharded_series.read_file
    monkeypatch.setattr(sharded_series, "read_file", lambda file, *more: read.append(file.name) or real(file, *more))
    first = OwnData(folder).collection.values
    assert sorted(set(read)) == sorted(f"part-{number}.npy" for number in range(11)) and len(read) == 12
    read.clear()
    assert OwnData(folder).collection.values.equal(first) and read == []
    labels = np.load("shards/part-3_labels.npy")[::-1]
    np.save("shards/part-3_labels.npy", labels)
    os.utime("shards/part-3_labels.npy", ns=(1, 1))
    assert (OwnData(folder).collection.labels[PARTS[3]] == labels).all() and read


def test_reading_goes_on_where_it_was_stopped(monkeypatch):
    folder, read = sharded("shards/part-{}.npz"), []
    real = sharded_series.read_file

    def reading(file, *more):
        read.append(file.name)
        if file.name == "part-6.npz" and read.count(file.name) == 1:
            raise KeyboardInterrupt
        return real(file, *more)

    monkeypatch.setattr(sharded_series, "read_file", reading)
    with pytest.raises(KeyboardInterrupt):
        _ = OwnData(folder).collection
    read.clear()
    read.append("part-6.npz")
    np.savez("whole.npz", X=VALUES, y=LABELS)
    same(OwnData(folder), OwnData("whole.npz"))
    assert read == ["part-6.npz", "part-0.npz", "part-6.npz", *(f"part-{number}.npz" for number in range(7, 11))]


@pytest.mark.parametrize(("offset", "dtype"), [(0, torch.float32), (1e7, torch.float64)])
def test_values_that_float32_does_not_tell_apart_are_kept_in_float64(offset, dtype):
    for number, rows in enumerate(PARTS):
        Path("shards").mkdir(exist_ok=True)
        np.savez(f"shards/part_{number}.npz", X=offset + VALUES[rows].astype(float), y=LABELS[rows])
    np.savez("whole.npz", X=offset + VALUES.astype(float), y=LABELS)
    task = OwnData("shards")
    assert task.train.values.dtype == dtype
    same(task, OwnData("whole.npz"))
    network = rc.Network(rc.cells.GRU(2, 3), 3)
    network.front_end, network.label_names = task.front_end, task.label_names
    assert rows_for(network, "shards").values.dtype == dtype


def test_bad_rows_and_files():
    folder = sharded("shards/part-{}.npz")
    values = VALUES[PARTS[4]].copy()
    values[2] = np.nan
    np.savez("shards/part-4.npz", X=values, y=LABELS[PARTS[4]])
    np.savez("shards/part-7.npz", X=values[:0], y=LABELS[:0])
    with pytest.raises(BadData, match=r"part-4.npz, X\[2\] of train: all of its values are missing; skip_bad=True"):
        _ = OwnData(folder).collection
    task = OwnData(folder, skip_bad=True)
    assert len(task.collection.labels) == 120 - 1 - len(PARTS[7])
    assert [reason.split(": ")[-1] for reason in task.left_out] == ["all of its values are missing", "it has no rows"]
    with pytest.raises(BadData, match="and 1 more"):  # from the cache
        _ = OwnData(folder).collection
    np.savez("shards/part-7.npz", X=VALUES[PARTS[7], :, :1], y=LABELS[PARTS[7]])
    with pytest.raises(BadData, match=r"part-7.npz has 1 channels, and part-0.npz has 2"):
        _ = OwnData(folder, skip_bad=True).collection
    Path("shards/part-7.npz").write_bytes(b"no data")
    with pytest.raises(BadData, match=r"part-7.npz: not an .npz file"):
        _ = OwnData(folder).collection


def test_a_series_must_be_in_one_file():
    frame = long_frame(np.arange(120))
    Path("shards").mkdir()
    frame[:100].to_csv("shards/part-0.csv", index=False)  # ends in the middle of a series
    frame[100:].to_csv("shards/part-1.csv", index=False)
    with pytest.raises(BadData, match="the id 11 is in several files"):
        _ = OwnData("shards").collection


def test_rows_to_predict_on(tmp_path):
    sharded("shards/part-{}.npz")
    task = OwnData("shards")
    network = rc.Network(rc.cells.GRU(2, 3), 3)
    network.front_end, network.label_names = task.front_end, task.label_names
    Path("shards/part-5.npz").write_bytes(b"no data")
    left_out = []
    assert len(rc.predict(network, "shards", skip_bad=True, left_out=left_out)) == 120 - len(PARTS[5])
    assert len(left_out) == 1 and "part-5.npz" in left_out[0]


def test_files_that_only_look_like_shards():
    """A number at the end of a name that no other file shares."""
    write(Path("sets/gestures_2.npz"), np.arange(60))
    np.savez("sets/gestures_2_TEST.npz", X=VALUES[60:], y=LABELS[60:])
    assert len(OwnData("sets").train.labels) + len(OwnData("sets").validation.labels) == 60
    assert len(OwnData("sets").test.labels) == 60
    sharded("shards/part-{}.npz")
    assert len(OwnData("shards/part-3.npz").collection.labels) == len(PARTS[3])
