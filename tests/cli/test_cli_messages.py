"""Messages of the command line: flags, control characters, other encodings."""

import io

import pytest

from rankcode.cli.messages import as_flags, explained, printable, spell_out_what_cannot_be_encoded

OPTIONS = {"skip_bad", "batch_size", "data", "folder", "progress", "num_layers", "layout"}


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("skip_bad=True goes on without it", "--skip-bad goes on without it"),
        ("leave it out (skip_bad=True).", "leave it out (--skip-bad)."),
        ('give layout="channels-first", or not', "give --layout channels-first, or not"),
        ('get it with rc.data.download("mnist", "a b/c"), or', "get it with rankcode data mnist --to a b/c, or"),
        ("evaluate it with rows_for, or train again", "evaluate it with --on, or train again"),
        ("batch_size must be at least 1, not 0", "--batch-size must be at least 1, not 0"),
        ("give data= the folder", "give --data the folder"),
        ("say folder=…, or data=mnist", "say --folder, or --data mnist"),
        ("try num_layers=2.", "try --num-layers 2."),
        ("progress=False is silent", "--no-progress is silent"),
        ("the data folder is empty", "the data folder is empty"),
        ("hidden_size is no option here", "hidden_size is no option here"),
        ("runs/batch_size=64/config.json is damaged", "runs/batch_size=64/config.json is damaged"),
        ("batch_size=64/config.json is damaged", "batch_size=64/config.json is damaged"),
        ("skip_bad.npz is empty", "skip_bad.npz is empty"),
        ("there is no label 'skip_bad'", "there is no label 'skip_bad'"),
    ],
)
def test_arguments_become_flags(message, written):
    assert as_flags(message, OPTIONS) == written


def test_control_characters_are_escaped():
    assert printable("a\x1b[2J\r\n\u202e\udcff\x9b") == "a\\x1b[2J\\r\\n\\u202e\\udcff\\x9b"
    assert printable("θ ≥ 0.95, héllo, 日本") == "θ ≥ 0.95, héllo, 日本"


def test_what_an_encoding_lacks_is_spelled_out():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    spell_out_what_cannot_be_encoded(stream)
    stream.write("θ … é 日")
    stream.flush()
    assert stream.buffer.getvalue().decode("cp1252") == "theta … é ?"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\nlines"), "two lines"),
        (FileNotFoundError(2, "No such file or directory", "a.npz"), "a.npz: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (ModuleNotFoundError("no", name="matplotlib.figure"), "pip install 'rankcode[plots]'"),
        (MemoryError(), "not enough memory"),
        (MemoryError("no memory for this: choose a smaller batch_size"), "choose a smaller --batch-size"),
        (KeyError("finish_with"), "(KeyError; set RANKCODE_TRACEBACK=1 to see where)"),
    ],
)
def test_an_error_in_one_line(error, said):
    assert "Errno" not in explained(error, OPTIONS)
    assert said in explained(error, OPTIONS) and "\n" not in explained(error, OPTIONS)
