"""`rankcode predict`."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_data import CPU, QUICK, answers, says, tones, two_levels

import rankcode as rc
from rankcode.cli.main import main
from rankcode.front_ends import Standardise
from rankcode.saving.run_folder import RunFolder
from wav_files import tone


def test_predict_sound_files_and_folders(trained, capsys):
    one, run = tone(Path("one.wav"), 320), str(trained / "sound-run")
    main(["predict", run, "one.wav", *CPU])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["answer", "probability", "steps", "heard", "from"]
    assert row.split()[0] == "deep" and " ms " in row and row.split()[5] == "one.wav"
    tones(Path("folder"), count=2)
    main(["predict", run, "folder", "one.wav", *CPU, "--json"])
    found = answers(capsys)
    assert [each["from"] for each in found] == [
        *(f"folder/{word}/{k}.wav" for word in ("deep", "high") for k in (0, 1)),
        "one.wav",
    ]
    assert [each["label"] for each in found] == ["deep", "deep", "high", "high", "deep"]
    (expected,) = rc.predict(RunFolder(run).model(), one)
    probability = pytest.approx(expected.probability, abs=1e-6)  # rows read together differ in the last digits
    probabilities = pytest.approx(expected.probabilities, abs=1e-6)
    rounded = {"probability": probability, "probabilities": probabilities}
    assert found[-1] == {"from": "one.wav", **expected._asdict(), **rounded}


def test_predict_with_another_threshold(trained, capsys):
    tone(Path("one.wav"), 320)
    for threshold, fired in ((0.5, True), (1.0, False)):
        main(["predict", str(trained / "sound-run"), "one.wav", *CPU, "--threshold", str(threshold), "--json"])
        (found,) = answers(capsys)
        steps = 1 if fired else 11
        assert (found["fired"], found["steps"]) == (fired, steps)
        assert found["milliseconds"] == min(300, 10 * (steps - 1) + 212.5)
    main(["predict", str(trained / "sound-run"), "one.wav", *CPU, "--threshold", "1.0"])
    assert "(did not fire)" in capsys.readouterr().out


def test_a_warning_is_shown_once(capsys):
    network = rc.Network(rc.cells.GRU(1, 4), 3)
    network.front_end = Standardise((0.0,), (1.0,))
    rc.save(network, "three.safetensors")
    two_levels("other.npz", rows=6)
    main(["predict", "three.safetensors", "other.npz", *CPU, "--threshold", "0.2"])
    assert capsys.readouterr().err.count("threshold 0.2 is below 1/3") == 1


def test_predict_the_rows_of_a_file(trained, capsys):
    two_levels("other.npz", rows=6)
    main(["predict", str(trained / "series-run"), "other.npz", *CPU, "--json"])
    found = answers(capsys)
    assert [each["from"] for each in found] == [f"other.npz, row {row}" for row in range(1, 7)]
    expected = rc.predict(RunFolder(trained / "series-run").model(), "other.npz", rc.Threshold(0.9))
    assert [{**each, "from": ""} for each in found] == [{"from": "", **each._asdict()} for each in expected]
    main(["predict", str(trained / "series-run"), "other.npz", *CPU])
    head, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 6 and head.split() == ["answer", "probability", "steps", "from"]  # "heard" is for sound
    assert rows[0].split()[3:] == ["other.npz,", "row", "1"]


def test_predict_with_a_model_file(trained, capsys):
    shutil.copy(trained / "series-run" / "best.safetensors", "model.safetensors")
    two_levels("other.npz", rows=6)
    main(["predict", "model.safetensors", "other.npz", *CPU, "--json"])
    network = rc.load("model.safetensors")
    assert network.rule == rc.load(trained / "series-run").rule == rc.Threshold(0.9)
    expected = rc.predict(network, "other.npz", rc.Threshold(0.9))
    assert [each["probability"] for each in answers(capsys)] == [each.probability for each in expected]


def test_a_broken_file_among_good_ones(trained, capsys):
    for name in ("a", "c"):
        tone(Path("folder", f"{name}.wav"), 320)
    Path("folder", "b.wav").write_bytes(tone(Path("b.wav"), 320).read_bytes()[:-100])
    arguments = ["predict", str(trained / "sound-run"), "folder", *CPU, "--json"]
    says(arguments, "folder/b.wav is cut short", "--skip-bad")
    capsys.readouterr()
    main([*arguments, "--skip-bad"])
    said = capsys.readouterr()
    assert [json.loads(line)["from"] for line in said.out.splitlines()] == ["folder/a.wav", "folder/c.wav"]
    assert said.err.count("left out: ") == 1 and "folder/b.wav is cut short" in said.err


def test_what_a_folder_hides_is_not_asked_for(trained, capsys):
    tone(Path("folder", "a.wav"), 320)
    Path("folder", "._a.wav").write_bytes(b"what another system keeps beside it")
    main(["predict", str(trained / "sound-run"), "folder", *CPU, "--json"])
    assert [each["from"] for each in answers(capsys)] == ["folder/a.wav"]


def test_nothing_to_predict(trained):
    Path("empty").mkdir()
    says(["predict", str(trained / "sound-run"), "empty", *CPU], "no sound file in empty")
    says(["predict", str(trained / "sound-run"), "none.wav", *CPU], "no file none.wav")
    says(["predict", str(trained / "sound-run"), *CPU])
    two_levels("levels.npz")
    says(["predict", str(trained / "sound-run"), "levels.npz", *CPU], "levels.npz is not sound")
    tone(Path("one.wav"), 300)
    says(["predict", str(trained / "series-run"), "one.wav", *CPU], "one.wav")


def test_a_run_on_a_task_without_raw_data():
    main(["train", "spotting", *QUICK, "--examples", "32", "--folder", "run"])
    says(["predict", "run", "x.wav", *CPU], "x.wav")


def test_a_bad_row_does_not_cost_its_file(trained, tmp_path, capsys):
    rows = np.zeros((3, 8), np.float32)
    rows[1, 2] = np.inf
    np.savez(tmp_path / "new.npz", X=rows)
    run = str(trained / "series-run")
    says(["predict", run, str(tmp_path / "new.npz"), *CPU], "new.npz, X[1]", "--skip-bad")
    main(["predict", run, str(tmp_path / "new.npz"), *CPU, "--skip-bad", "--json"])
    out, err = capsys.readouterr()
    assert "X[1]" in err
    assert [json.loads(line)["from"].rpartition(", ")[2] for line in out.splitlines()] == ["row 1", "row 3"]
    says(["predict", run, str(tmp_path / "none.ts"), *CPU, "--skip-bad"], "nothing to answer to")


def test_the_same_file_twice_is_answered_twice(trained, capsys):
    one, other = sorted(str(file) for file in (trained / "sounds" / "deep").iterdir())[:2]
    main(["predict", str(trained / "sound-run"), one, other, one, *CPU, "--json"])
    assert [json.loads(line)["from"] for line in capsys.readouterr().out.splitlines()] == [one, other, one]


def test_answers_as_a_table(trained, capsys):
    two_levels("other.npz", rows=6)
    command = ["predict", str(trained / "series-run"), "other.npz", *CPU]
    expected = rc.predict(rc.load(trained / "series-run"), "other.npz")
    for _ in range(2):  # its own file is replaced
        main([*command, "--output", "made/answers.csv"])
    assert capsys.readouterr().out == ""
    with open("made/answers.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == [
        *("from", "label", "probability", "steps", "fired"),
        *("probability_high", "probability_low"),
    ]
    for number, (row, answer) in enumerate(zip(found, expected, strict=True), 1):
        assert row["from"] == f"other.npz, row {number}"
        assert (row["label"], int(row["steps"]), row["fired"]) == (answer.label, answer.steps, str(answer.fired))
        for name in ("high", "low"):
            assert float(row[f"probability_{name}"]) == pytest.approx(answer.probabilities[name], rel=1e-5)
        assert row["probability"] == row[f"probability_{answer.label}"]
    main([*command, "--output", "answers.jsonl"])
    lines = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [{**line, "from": ""} for line in lines] == [{"from": "", **answer._asdict()} for answer in expected]
    tone(Path("one.wav"), 320)
    main(["predict", str(trained / "sound-run"), "one.wav", *CPU, "--output", "sound.csv"])
    assert Path("sound.csv").read_text().splitlines()[0].split(",")[4:7] == [
        "fired",
        "milliseconds",
        "probability_deep",
    ]


def test_answers_are_printed_or_written_to_a_file_not_both(trained):
    two_levels("other.npz", rows=6)
    arguments = ["predict", str(trained / "series-run"), "other.npz", *CPU, "--json", "--output", "answers.csv"]
    says(arguments, "give one of the two")
    assert not Path("answers.csv").exists()


def test_answers_in_parts(trained, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    run = str(trained / "sound-run")
    tones(Path("folder"), count=2)
    Path("folder", "broken.wav").write_bytes(b"RIFF")
    Path("list.csv").write_text("path\nfolder\n")
    main(["predict", run, "list.csv", *CPU, "--output", "answers.csv", "--skip-bad"])
    capsys.readouterr()
    for _ in range(2):  # its own file is replaced
        main(["predict", run, "list.csv", *CPU, "--output", "answers.parquet"])
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("left out 1 files or rows: answers.left-out.txt lists them") == 2
    assert "wrote 4 answers to answers.parquet; " in said.err and "per second" in said.err
    found, expected = pandas.read_parquet("answers.parquet"), pandas.read_csv("answers.csv")
    assert found.columns.tolist() == expected.columns.tolist()
    exact = ["from", "label", "steps", "fired", "milliseconds"]
    assert found[exact].astype(object).equals(expected[exact].astype(object))
    Path("empty").mkdir()
    says(["predict", run, "empty", *CPU, "--output", "none.parquet"], "nothing to answer to")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--workers", "2"], ["--workers and --address need --output", ".parquet"]),
        (["--output", "answers.csv", "--address", "auto"], ["--workers and --address need --output"]),
        (["--output", "answers.parquet", "--plot", "a.png"], ["--plot draws"]),
        (["--output", "answers.parquet", "--workers", "0"], ["--workers must be at least 1"]),
    ],
)
def test_what_answers_in_parts_need(trained, flags, parts):
    says(["predict", str(trained / "series-run"), "x.npz", *CPU, *flags], *parts, status=2)


@pytest.mark.parametrize("name", ["mine.csv", "mine.jsonl", "mine.png", "mine.parquet", "mine.left-out.txt"])
def test_a_file_of_the_users_is_not_replaced_by_answers(trained, name):
    Path(name).write_text("label,steps\nlow,3\n")
    option = "--plot" if name.endswith("png") else "--output"
    data = str(trained / "levels.npz")
    given = name.replace("left-out.txt", "parquet")
    says(["predict", str(trained / "series-run"), data, *CPU, option, given], "did not write it", option, status=2)
    assert Path(name).read_text() == "label,steps\nlow,3\n"
    wrong = "answers.txt" if option == "--output" else "answers.pdf"
    says(["predict", str(trained / "series-run"), data, *CPU, option, wrong], f"{option} takes", wrong, status=2)


@pytest.mark.parametrize(("run", "data"), [("series-run", "levels.npz"), ("sound-run", "sounds")])
def test_a_picture_of_answers(trained, capsys, run, data):
    pytest.importorskip("matplotlib")
    for _ in range(2):  # its own file is replaced
        main(["predict", str(trained / run), str(trained / data), *CPU, "--plot", "answers.png", "--json"])
    captured = capsys.readouterr()
    assert all(json.loads(line) for line in captured.out.splitlines()) and "wrote answers.png" in captured.err
    assert Path("answers.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_is_drawn_though_nobody_reads_the_answers(trained, tmp_path, monkeypatch):
    def closed(*lines, file=None):
        if file is None:
            raise BrokenPipeError

    monkeypatch.setattr("rankcode.cli.predict.say", closed)
    run, data = str(trained / "series-run"), str(trained / "levels.npz")
    main(["predict", run, data, "--plot", str(tmp_path / "answers.png"), *CPU])
    assert (tmp_path / "answers.png").exists()
