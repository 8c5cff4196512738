"""`rankcode listen`."""

import io
import re
import sys
import types
from pathlib import Path

import numpy as np
from small_data import answers, says

import rankcode as rc
from rankcode.cli.bars import bar
from rankcode.cli.main import main
from wav_files import tone, write_wav


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def screen(self):
        """The lines that are left when every escape sequence has had its effect."""
        lines = []
        for part in re.split(r"(\x1b\[\d+A\x1b\[J)", self.getvalue()):
            if part.startswith("\x1b"):
                del lines[-int(re.findall(r"\d+", part)[0]) :]
            else:
                lines += part.splitlines()
        return lines


def shown(arguments, monkeypatch):
    """What the command writes to a terminal of 60 columns."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal := Terminal())
        patch.setenv("COLUMNS", "60")
        main(arguments)
    return terminal


def test_a_short_recording_gets_one_answer(capsys):
    path = write_wav(Path("clip.wav"), 16_000)
    (expected,) = rc.predict(rc.load("speech-commands"), path)
    main(["listen", "clip.wav", "clip.wav"])
    line = f"{expected.label}, after {expected.milliseconds:.0f} ms of 1,000 ({expected.probability:.3f})   clip.wav"
    assert expected.fired and capsys.readouterr().out.splitlines() == [line, line]
    main(["listen", "clip.wav", "--json"])
    (found,) = answers(capsys)
    assert (found["label"], found["steps"], found["milliseconds"]) == (
        expected.label,
        expected.steps,
        expected.milliseconds,
    )
    assert found["from"] == "clip.wav" and found["length"] == 1000 and len(found["probabilities"]) == 12
    main(["listen", "clip.wav", "--threshold", "1.0"])
    assert "at the end, not sure" in capsys.readouterr().out


def test_the_network_of_a_run(trained, capsys):
    tone(Path("one.wav"), 320)
    main(["listen", "one.wav", "--model", str(trained / "sound-run"), "--json"])
    (found,) = answers(capsys)
    assert found["label"] == "deep" and set(found["probabilities"]) == {"deep", "high"}


def test_every_word_of_a_long_recording(trained, capsys):
    """A tone of 300 Hz, then one of 3,000 Hz, each a class of the network."""
    seconds = np.arange(16_000 * 2) / 16_000
    sound = np.concatenate([np.sin(2 * np.pi * hertz * seconds) for hertz in (320, 3020)])
    write_wav(Path("long.wav"), 0.3 * sound)
    network = ["--model", str(trained / "sound-run"), "--threshold", "0.5"]
    main(["listen", "long.wav", "--json", *network])
    found = answers(capsys)
    assert {each["label"] for each in found} == {"deep", "high"} and found[0]["from"] == "long.wav"
    assert next(each for each in found if each["label"] == "high")["seconds"] > 2
    main(["listen", "long.wav", *network])
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == [each["label"] for each in found]
    assert last == f"{len(found)} words   long.wav"


def test_bars_in_a_terminal(monkeypatch):
    write_wav(Path("clip.wav"), 16_000)
    terminal = shown(["listen", "clip.wav", "--speed", "4"], monkeypatch)
    *bars, answer = terminal.screen()
    assert terminal.getvalue().count("\x1b[12A") > 2  # drawn several times, in place
    assert len(bars) == 12 and bars[0].startswith("yes ") and all(len(line) <= 60 for line in bars)
    assert all(line.count("┃") == 1 for line in bars)  # θ
    label = answer.split(",")[0]
    assert max(bars, key=lambda line: line.count("█")).split()[0] == label


def test_words_stand_above_the_bars(monkeypatch, trained):
    tone(Path("long.wav"), 320, seconds=2.5)
    run = ["--model", str(trained / "sound-run"), "--threshold", "0.5"]
    words, *bars, last = shown(["listen", "long.wav", *run, "--speed", "0"], monkeypatch).screen()
    assert "deep" in words and [line.split()[0] for line in bars] == ["deep", "high"] and last.startswith("1 words")


def test_a_bar():
    assert bar(0.5, 0.8, 10) == "█████   ┃ "
    assert bar(1.0, 0.8, 10) == "████████┃█"
    assert bar(0.0, 1.0, 4) == "   ┃" and bar(0.0, float("inf"), 4) == "    "


def test_errors(trained, monkeypatch):
    says(["listen"], "name sound files to listen to, or --mic", status=2)
    write_wav(Path("clip.wav"))
    says(["listen", "clip.wav", "--mic"], "not both", status=2)
    says(["listen", "clip.wav", "--speed", "-1"], "--speed", status=2)
    says(["listen", "clip.wav", "--threshold", "2"], "threshold 2 is outside (0, 1]", status=2)
    says(["listen", "missing.wav"], "missing.wav", status=1)
    Path("text.wav").write_text("not sound")
    says(["listen", "text.wav"], "text.wav is not sound that can be read", status=1)
    says(["listen", "clip.wav", "--model", str(trained / "series-run")], "does not read sound", status=2)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    says(["listen", "--mic"], "needs sounddevice: pip install 'rankcode[mic]'", status=1)


def test_a_microphone_that_is_not_there(monkeypatch):
    """A module in place of sounddevice, on a computer without a microphone."""

    class PortAudioError(Exception):
        pass

    def refuse(**_):
        raise PortAudioError("Error querying device -1")

    monkeypatch.setitem(
        sys.modules, "sounddevice", types.SimpleNamespace(PortAudioError=PortAudioError, InputStream=refuse)
    )
    says(["listen", "--mic"], "there is no microphone that records at 16,000 Hz: Error querying device -1", status=1)


def test_help(capsys):
    main(["listen", "--help"])
    text = capsys.readouterr().out
    assert "Usage: rankcode listen [FILES] [OPTIONS]" in text and "--mic" in text and "speech-commands" in text
