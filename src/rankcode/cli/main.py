"""The command line: reads arguments, runs a command, turns an error into one line.

The exit status is 0, 1 for an error, 2 for wrong arguments and 130 for Ctrl-C. A plain ValueError means that an
argument was refused; files and data that cannot be used raise BadData, a subclass, or OSError. Modules are imported
when they are needed, so that help does not wait for PyTorch.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

from rankcode.cli import messages
from rankcode.cli.ctrl_c import EndedByCtrlC
from rankcode.cli.messages import suggestion

COMMANDS = {  # each command is a class of its name in a module of its name
    "demo": "Train two small networks and write a page that compares them.",
    "train": "Train a network on a task, or on your own data.",
    "sweep": "Train many networks, and find the best trade-offs among them.",
    "resume": "Continue a run that was interrupted, or train it for longer.",
    "evaluate": "Measure accuracy and steps read on test data.",
    "tune": "Fit the rule of a network to what you need.",
    "tradeoff": "Draw accuracy against steps read, over thresholds.",
    "predict": "Classify recordings or series.",
    "listen": "Recognise spoken words in sound files or from a microphone.",
    "export": "Write a network as an ONNX file, for other languages and browsers.",
    "serve": "Show in a web page when a network answers, or start a service.",
    "data": "Download a public data set.",
    "compare": "Compare our early classifiers with others, on sets of series.",
    "bench": "Measure the speed of the engines on this machine.",
    "reproduce": "Reproduce figures and tables of the paper.",
}
OVERVIEW = f"""\
Usage: rankcode COMMAND [OPTIONS]

Recurrent networks that learn when to answer, and compute nothing after it.

Commands:
{"".join(f"  {name:<10} {line}{chr(10)}" for name, line in COMMANDS.items())}
Example: rankcode train gestures.npz --folder runs/gestures
Options:
  --help     Show this text; rankcode COMMAND --help explains a command.
  --version  Show the version.
"""
ALSO_AN_OPTION = re.compile(r"\b([A-Z-]+) (?i:--\1)\b")  # the name of a required argument, as help shows it


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    messages.spell_out_what_cannot_be_encoded(sys.stdout, sys.stderr)
    options: set[str] = set()
    try:
        with warnings.catch_warnings():
            warn = cache(lambda message: _warn(message, options))  # the same warning once
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            with EndedByCtrlC():
                command = parsed(argv, options)
            if command is not None:
                command.run()
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        _stop(str(stop) or "stopped", 130)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get("RANKCODE_TRACEBACK"):
            raise
        _stop(messages.explained(error, options), 2 if type(error) is ValueError else 1)


def parsed(argv: list[str], options: set[str] | None = None) -> Any:
    """The requested command, or None after help. Adds the names of its arguments to `options`."""
    options = set() if options is None else options
    name, *rest = argv or [""]
    if name in ("--help", "-h"):
        print(OVERVIEW, end="")
        return None
    if name == "--version":
        print(f"rankcode {_version()}")
        return None
    if name not in COMMANDS:
        problem = f"there is no command {name!r}" if name else "no command was given"
        close = suggestion(name, COMMANDS) or f"choose from {', '.join(COMMANDS)}"
        raise ValueError(f"{problem}: {close} (see rankcode --help)")
    from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, UnknownOptionError
    from rich.console import Console

    kind = getattr(import_module(f"rankcode.cli.{name}"), name.capitalize())
    names = {field: field.upper().replace("_", "-") for field in kind.__match_args__}
    required = " ".join(f"[{name}]" if hasattr(kind, field) else name for field, name in names.items())
    app = App(
        name=f"rankcode {name}",
        usage=f"Usage: rankcode {name} {required}{' ' if required else ''}[OPTIONS]",
        help_format="markdown",
        version_flags=(),
        group_commands=Group("Commands", show=False),
        default_parameter=Parameter(consume_multiple=True, negative_iterable=(), show_default=_shown),
    )
    app.default(kind)
    for argument in app.assemble_argument_collection().filter_by(parse=True):
        options.update(name.lstrip("-").replace("-", "_") for name in argument.names)
    console = Console()
    try:
        make, bound, _ = app.parse_args(rest, console=console, exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        argument = "" if error.argument is None else error.argument.name.lstrip("-").upper()
        problem = f"{argument} is missing" if argument in required.split() else str(error)
        raise ValueError(f"{problem} (see rankcode {name} --help)") from None
    except UnknownOptionError as error:
        unknown = (error.token.keyword or error.token.value).partition("=")[0]
        close = suggestion(unknown.lstrip("-"), [each.replace("_", "-") for each in options])
        close = close.replace("mean ", "mean --")
        raise ValueError(f"there is no option {unknown}{close and ': '}{close} (see rankcode {name} --help)") from None
    except CycloptsError as error:
        raise ValueError(f"{error} (see rankcode {name} --help)") from None
    if make is kind:
        return make(*bound.args, **bound.kwargs)
    with console.capture() as text:  # a console of rich exits with 1 if it cannot write to a pipe
        make(*bound.args, **bound.kwargs)
    print(ALSO_AN_OPTION.sub(lambda found: found[1] + " " * (len(found[0]) - len(found[1])), text.get()), end="")
    return None


def _shown(default: Any) -> Any:
    """A default as help shows it; None if it cannot be typed."""
    if default is None or isinstance(default, bool) or default == ():
        return None
    return " ".join(map(str, default)) if isinstance(default, tuple) else default


def _version() -> str:
    from importlib import metadata  # importing it takes longer than all of --help

    try:
        return metadata.version("rankcode")
    except metadata.PackageNotFoundError:
        return "from source"


def _warn(message: str, options: set[str]) -> None:
    messages.say(f"rankcode: warning: {messages.as_flags(' '.join(message.split()), options)}", file=sys.stderr)


def _stop(message: str, status: int) -> NoReturn:
    text = f"rankcode: {messages.printable(message)}"
    print(text, file=sys.stderr)
    stop = SystemExit(text)
    stop.code = status
    raise stop
