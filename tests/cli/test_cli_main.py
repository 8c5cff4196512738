"""The command line as a whole: help, mistakes, exit status, output."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_data import CPU, QUICK, says, two_levels

from new_process import ENVIRONMENT
from rankcode.cli.main import COMMANDS, main
from wav_files import tone

EXTRAS = ("matplotlib", "sklearn", "soundfile", "soxr", "pyarrow", "tensorboard", "triton", "fastapi", "uvicorn", "ray")


def without(modules, *commands):
    """Run commands, one after the other, in a process that cannot import these modules: (status, output, errors)."""
    code = f"""import contextlib, io, json, sys
sys.modules.update(dict.fromkeys({tuple(modules)}))
from rankcode.cli.main import main
for arguments in json.loads(sys.argv[1]):
    status = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(arguments)
        except SystemExit as stop:
            status = stop.code
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def help_of(command, capsys):
    main([command, "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_readable_on_80_columns_and_has_an_example(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(command, capsys)
    assert max(map(len, text.splitlines())) <= 80
    example = re.search(rf"For example:\s+rankcode {command}\b", text)
    assert example and text.startswith(f"Usage: rankcode {command} ")
    assert "None" not in text and "dataclass" not in text
    assert not re.search(r"\[default: (False|True|\(|\])|--empty-|-no-skip-bad", text)


def test_help_shows_the_options_that_matter_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of("train", capsys)
    first, _, rest = text.partition("─ Data ─")
    shown = re.findall(r"^│ [* ]*(TASK  |--[a-z-]+)", first, re.MULTILINE)
    assert shown[0] == "TASK  " and "--task" not in text and "select_" not in text
    assert {"--model", "--accuracy", "--objective", "--cell", "--hidden-size", "--epochs", "--folder"} < set(shown)
    assert len(shown) <= 12
    assert "Default: gru, or lstm with" in first and "Rows in a batch. Default: 32 for fewer than" in rest
    assert [title for title in ("Network", "Optimisation", "Run") if f"─ {title} ─" not in rest] == []


def test_the_overview_fits_one_screen_and_does_not_wait_for_pytorch():
    ((status, text, _),) = without(("torch", "numpy"), ["--help"])
    lines = text.splitlines()
    assert status == 0 and len(lines) <= 25 and max(map(len, lines)) <= 80
    assert [name for name in COMMANDS if not any(line.startswith(f"  {name} ") for line in lines)] == []


def test_version(capsys):
    main(["--version"])
    assert re.fullmatch(r"rankcode \d+\.\d+.*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "no command was given: choose from demo, train"),
        ("tarin", "there is no command 'tarin': did you mean train? (see rankcode --help)"),
        ("nonsense", "there is no command 'nonsense': choose from demo, train"),
        ("nonsense --help", "there is no command 'nonsense'"),
        ("train", "TASK is missing (see rankcode train --help)"),
        ("predict run", "FILES is missing"),
        ("train mnist", "no task and no data 'mnist': name a path, or one of spotting"),
        ("train nonsense.npz", "no data 'nonsense.npz'"),
        ("train spotting extra", "extra"),
        ("train spoting", "no task and no data 'spoting': did you mean spotting?"),
        ("train spotting --banana 1", "there is no option --banana (see rankcode train --help)"),
        ("sweep spotting --over beta=0,1 --model recurrent", "there is no option --model (see rankcode sweep --help)"),
        ("train spotting --learning-rat=1", "there is no option --learning-rat: did you mean --learning-rate? (see"),
        ("train spotting --learning-rate fast", 'Invalid value for --learning-rate: unable to convert "fast"'),
        ("train spotting --learning-rate", "--learning-rate requires an argument"),
        ("train spotting --learning-rate -1", "--learning-rate must be a number above 0"),
        ("train spotting --cell transformer", 'Choose from: "lstm", "gru"'),
        ("train spotting --threshold nan", "threshold"),
        ("train missing.npz --threshold 7", "--threshold 7 is outside (0, 1], the range of probabilities"),
        ("train missing.npz --device abacus", "there is no device 'abacus'"),
        ("train spotting --beta much", "--beta must be a number"),
        ("train spotting --beta nan", "--beta must be a number"),
        ("train spotting --objective every-step --beta 0.1", "every-step has no --beta"),
        ("train spotting --cell conv-lstm", "reads images"),
        ("train two-sequence --threshold 0.3", "threshold 0.3 is outside [0.5, 1]"),
        ("train two-sequence --epochs 1e308", "this data has no epochs"),
        ("train two-sequence --examples 1e308", "Invalid value"),
        (f"train two-sequence --examples {10**23}", "--examples 1e+23 is too long"),
        ("train two-sequence --precision float16", "precision float16 is for GPUs"),
        ("train two-sequence --folder run --engine compiled --cell lif", "the engine compiled cannot run"),
        ("train two-sequence --num-layers 100000000", "--num-layers must be at most 1,000"),
        ("train two-sequence --hidden-size 0", "--hidden-size must be at least 1"),
        ("train spotting --data x", "--data does not apply to spotting"),
        ("train spotting --test-share 0.1", "--test-share does not apply to spotting"),
        ("train two-sequence --augment", "--augment does not apply to two-sequence"),
        ("train temporal-digits --skip-bad", "--skip-bad does not apply to temporal-digits"),
        ("train temporal-digits --cell lif --num-layers 2", "--num-layers is for lstm and gru"),
        ("train temporal-digits --cell lif --kernel-size 5", "--kernel-size is for conv-lstm and conv-lif"),
        ("train temporal-digits --cell conv-lif --kernel-size 4", "--kernel-size must be odd"),
        ("train temporal-digits --cell conv-lstm --kernel-size -1", "--kernel-size must be odd"),
        ("train temporal-digits --cell lif --decay 3", "must be within 0…1, not 3"),
        ("train spotting --decay 0.5", "decay is for lif and conv-lif, not for gru"),
        ("train spotting --readout-layer-size -3", "--readout-layer-size must be at least 1, not -3"),
        (f"train spotting --hidden-size {'9' * 22}", "--hidden-size must be at most 1,152,921,504,606,846,976"),
        ("train spotting --learning-rate 1e300", "--learning-rate must be a number above 0 and at most"),
        ("serve --api --port 70000", "port must be within 0…65535, not 70000"),
        ("train spotting --readout-layer-size 4 --cell lif", "for lstm and gru, not for lif"),
        (f"train spotting --seed {'9' * 30}", "seed must be a whole number"),
        ("train spotting --engine steam", "not 'steam'"),
        ("train spotting --resume", "resume needs a folder"),
        ("train spotting --epochs 2 --examples 3", "epochs or examples, not both"),
        ("tradeoff", "RUN-FOLDERS is missing"),
        ("evaluate run --split holiday", 'Invalid value "holiday" for --split. Choose from'),
        ("demo --test-rows 0", "--test-rows must be at least 1"),
        ("data imagenet", 'Choose from: "mnist"'),
        ("reproduce fig99", "no figure or table 'fig99'"),
        ("bench --batch-sizes 0", "at least 1"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exits_with_2(arguments, said, capsys):
    says(arguments.split(), said, status=2)
    assert capsys.readouterr().out == "" and list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train .", "is not data that rankcode reads"),
        ("train temporal-mnist", "rankcode data mnist --to"),
        ("train temporal-mnist --data none", "rankcode data mnist --to"),
        ("train speech-commands --data none", "rankcode data speech-commands --to"),
        ("evaluate nowhere", "nowhere is not a run folder"),
        ("evaluate nowhere --on x", "nowhere is not a run folder"),
        ("resume nowhere", "nowhere is not a run folder"),
        ("tradeoff nowhere", "nowhere is not a run folder"),
        ("predict nowhere x.wav", "no model file nowhere"),
        ("predict . x.wav", "not a run folder"),
    ],
)
def test_an_error_is_one_line_and_exits_with_1(arguments, said, capsys):
    says(arguments.split(), said, status=1)
    assert capsys.readouterr().out == "" and not list(Path().rglob("*.safetensors"))


@pytest.mark.parametrize("module", ["rankcode.cli.messages", "cyclopts.parameter", "torch._C"])
def test_ctrl_c_during_imports_is_one_line(module):
    command = [sys.executable, "-X", "importtime", "-m", "rankcode", "train", "spotting"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        for line in process.stderr:  # a line for each module that has been imported
            if line.split("|")[-1].strip() == module:
                process.send_signal(signal.SIGINT)
                break
        said = [line for line in process.stderr if not line.startswith("import time:")]
    assert (process.returncode, said) == (130, ["rankcode: stopped\n"])


def test_nothing_that_takes_time_is_imported_before_ctrl_c_is_handled():
    asked = "import sys; before = set(sys.modules); import rankcode.__main__; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, env=ENVIRONMENT)
    others = {module for module in done.stdout.split() if not module.startswith("rankcode")}
    assert others <= {"__future__", "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "warnings"}


def test_ctrl_c_stays_ignored_in_the_background():
    ignoring = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.argv = ['rankcode', '--help']; "
    asked = ignoring + "import rankcode.__main__ as r; r.main(); assert signal.getsignal(2) is signal.SIG_IGN"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0 and done.stdout.startswith("Usage: rankcode") and done.stderr == ""


def test_a_closed_pipe_is_not_an_error_and_costs_no_file(trained, monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        main(["tradeoff", str(trained / "series-run"), "--device", "cpu", "--output", "curve"])
    assert "rankcode: " not in capfd.readouterr().err
    assert len(json.loads(Path("curve.json").read_text())["curves"]) == 1 and Path("curve.png").exists()
    line = f"{sys.executable} -m rankcode train --help | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout.splitlines() == ["Usage: rankcode train TASK [OPTIONS]", "0"] and done.stderr == ""


def test_output_that_is_not_unicode(trained, monkeypatch):
    out, err = io.BytesIO(), io.BytesIO()
    for name, content in (("stdout", out), ("stderr", err)):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(content, encoding="cp1252", write_through=True))
    main(["evaluate", str(trained / "series-run"), *CPU])
    assert b"(alpha = 0.2)" in out.getvalue() and b"####" in err.getvalue()


def test_names_from_data_do_not_reach_the_terminal_raw(tmp_path, capsys):
    names = ("low\x1b[2J", "high\nand more")
    path = two_levels(tmp_path / "levels\x1b[31m.npz", names=names)
    main(["train", path, *QUICK, "--epochs", "10", "--folder", "run\x07"])
    main(["evaluate", "run\x07", *CPU])
    main(["predict", "run\x07", path, *CPU])
    main(["tradeoff", "run\x07", *CPU, "--output", "out\x1bput"])
    said = capsys.readouterr()
    text = said.out + re.sub(r"\r\x1b\[2K|\r", "", said.err)
    assert [each for each in text if not each.isprintable() and each != "\n"] == []
    assert "low\\x1b[2J" in said.out and "high\\nand more" in said.out and "run\\x07" in said.out
    says(["evaluate", "no\x1bwhere"], "no\\x1bwhere is not a run folder", status=1)


def test_the_core_alone_runs_the_commands_and_names_missing_extras(trained):
    two_levels("levels.npz")
    tone(Path("one.wav"), 320)
    Path("one.mp3").write_bytes(b"\xff\xfb\x90\x00" * 300)
    content = bytearray(tone(Path("other_rate.wav"), 320).read_bytes())
    content[24:28], content[28:32] = (8000).to_bytes(4, "little"), (16000).to_bytes(4, "little")
    Path("other_rate.wav").write_bytes(content)
    Path("new.parquet").write_bytes(b"PAR1")
    sound = str(trained / "sound-run")
    few = [*QUICK, "--examples", "32", "--folder", "run", "--readout-layer-size", "3"]
    commands = {
        "rankcode evaluate run": ["train", "levels.npz", *few],
        "on 60 rows of levels.npz": ["evaluate", "run", "--on", "levels.npz", *CPU],
        "levels.npz, row 60": ["predict", "run", "levels.npz", *CPU],
        "deep": ["predict", sound, "one.wav", *CPU],
    }
    wanted = [
        (["demo"], "plots"),
        (["bench"], "plots"),
        (["tradeoff", str(trained / "series-run")], "plots"),
        (["reproduce", "fig2", "--scale", "smoke"], "plots"),
        (["train", "temporal-digits"], "sklearn"),
        (["predict", str(trained / "series-run"), "new.parquet", *CPU], "parquet"),
        (["train", "spotting", "--tensorboard", "--folder", "other"], "tensorboard"),
        (["predict", sound, "one.mp3", *CPU], "audio"),
        (["predict", sound, "other_rate.wav", *CPU], "audio"),
        (["serve", "--api"], "serve"),
        (["sweep", "spotting", "--over", "beta=0,0.1", "--hidden-size", "2", *CPU], "ray"),
    ]
    done = without(EXTRAS, *commands.values(), *(arguments for arguments, _ in wanted))
    for said, (status, out, err) in zip(commands, done[: len(commands)], strict=True):
        assert status == 0 and said in out, err
    for (arguments, extra), (status, _, err) in zip(wanted, done[len(commands) :], strict=True):
        assert status == 1 and err.count("\n") == 1, (arguments, err)
        assert err.startswith("rankcode: ") and err.endswith(f"pip install 'rankcode[{extra}]'\n"), (arguments, err)
    assert not Path("runs").exists() and not Path("other").exists()


def test_an_unexpected_error_says_how_to_see_more(monkeypatch, tmp_path):
    from rankcode.cli import options

    monkeypatch.setattr(options, "TASKS", None)
    says(["train", "spotting"], "TypeError", "RANKCODE_TRACEBACK=1", status=1)
    monkeypatch.setenv("RANKCODE_TRACEBACK", "1")
    with pytest.raises(TypeError):
        main(["train", "spotting"])


def test_lack_of_memory_is_said(tmp_path):
    np.savez(tmp_path / "rows.npz", X=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    says(["train", str(tmp_path / "rows.npz"), "--hidden-size", "3000000", *CPU], "memory", "--hidden-size", status=1)
