"""What the command line prints: an error in one line, flags instead of Python's arguments, no control characters."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Collection, Iterable
from typing import Any, TextIO

EXTRAS = {  # the extra that installs a module
    "fastapi": "serve",
    "httptools": "serve",
    "matplotlib": "plots",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "onnxscript": "onnx",
    "optuna": "ray",
    "pandas": "ray",
    "pyarrow": "parquet",
    "ray": "ray",
    "sklearn": "sklearn",
    "sounddevice": "mic",
    "soundfile": "audio",
    "soxr": "audio",
    "tensorboard": "tensorboard",
    "triton": "triton",
    "uvicorn": "serve",
    "websockets": "serve",
}
# An argument as the library writes it, with or without its value; not a part of a path.
ARGUMENT = re.compile(
    r"(?<![\w/.\\'\"-])(?P<name>[a-z]+(?:_[a-z]+)*)(=(?P<value>\"[\w-]+\"|[\w…]*(?:\.\w+)*))?(?![\w/\\=]|[.-]\w)"
)
DOWNLOAD = re.compile(r'rc\.data\.download\("([^"]*)", "([^"]*)"\)')
# For output encodings other than Unicode, such as a Windows code page.
SPELLED_OUT = {"α": "alpha", "β": "beta", "θ": "theta", "…": "...", "÷": "/", "−": "-", "─": "-", "█": "#", "·": "."}


def suggestion(name: str, known: Iterable[str]) -> str:
    """A question if `name` looks like a misspelt name, else an empty string."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1, cutoff=0.75)
    return f"did you mean {close[0]}?" if close else ""


def printable(text: str) -> str:
    """The text with control characters, line breaks and undecodable bytes escaped: a class may have any name."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines that may hold names and paths from data."""
    for line in lines:
        print(printable(line), file=file)


def say_left_out(lines: Iterable[str]) -> None:
    """List on standard error the parts of the data that could not be used."""
    for line in lines:
        say(f"left out: {as_flags(line)}", file=sys.stderr)


def spell_out_what_cannot_be_encoded(*streams: Any) -> None:
    """Let output in any encoding succeed: α becomes "alpha" where it cannot be written."""
    codecs.register_error("rankcode", _spelled_out)
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="rankcode")


def _spelled_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(SPELLED_OUT.get(each, "?") for each in error.object[error.start : error.end]), error.end


def as_flags(message: str, options: Collection[str] = ("skip_bad", "data", "layout")) -> str:
    """A message of the library with the arguments among `options` written as flags.

    `skip_bad=True` becomes --skip-bad, `folder=` --folder, and `batch_size` --batch-size; a single word such as "data"
    is an ordinary word unless = follows it, and a part of a path is left alone.
    """

    def flag(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if name not in options or (value is None and "_" not in name):
            return found[0]
        written = f"--{name.replace('_', '-')}"
        if value == "False":
            return f"--no-{name.replace('_', '-')}"
        return written if value in (None, "", "True", "…") else f"{written} {value.strip(chr(34))}"

    message = DOWNLOAD.sub(r"rankcode data \1 --to \2", message).replace("with rows_for", "with --on")
    return ARGUMENT.sub(flag, message)


def explained(error: Exception, options: Collection[str]) -> str:
    """An error in one line."""
    if isinstance(error, ImportError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        return f"this needs {error.name}: pip install 'rankcode[{extra}]'"
    if isinstance(error, MemoryError) and not str(error):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | ImportError | MemoryError | ArithmeticError):
        return as_flags(text, options)
    return f"{text} ({type(error).__name__}; set RANKCODE_TRACEBACK=1 to see where)"
