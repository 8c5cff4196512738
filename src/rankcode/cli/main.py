"""The command line: reads arguments, runs a command, turns an error into one line."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import redirect_stderr
from typing import Any

from rankcode.cli import arguments
from rankcode.cli.commands import COMMANDS
from rankcode.saving.run_folder import versions


def main(argv: list[str] | None = None) -> None:
    if (sys.argv[1:] if argv is None else argv) == ["--version"]:
        print(f"rankcode {versions()['rankcode']}")
        return
    try:
        _parse(argv).run()
    except KeyboardInterrupt:
        sys.exit("\nrankcode: stopped")
    except BrokenPipeError:
        os._exit(1)
    except Exception as error:
        if os.environ.get("RANKCODE_TRACEBACK"):
            raise
        expected = isinstance(error, ValueError | OSError | ImportError)
        hint = "" if expected else f" ({type(error).__name__}; set RANKCODE_TRACEBACK=1 to see where)"
        sys.exit(f"rankcode: {' '.join(str(error).split())}{hint}")


def _parse(argv: list[str] | None) -> Any:
    """The command that was asked for. tyro explains a mistake in a box of many lines: here it becomes one."""
    try:
        import tyro
    except ImportError:
        return arguments.parse(COMMANDS, argv)
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="rankcode",
                description="Recurrent networks that learn when to answer.",
                args=argv,
                config=(tyro.conf.PositionalRequiredArgs, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        lines = [line.strip(" │╰╯─|+") for line in said.getvalue().strip().splitlines()[1:]]  # without the title
        text = " ".join(line for line in lines if line.strip("-") and not line.startswith("For full helptext"))
        text = re.sub(
            r"Error parsing __tyro\S+ |Argument helptext.*|in rankcode \S+ --help$|rankcode \S+ --help$", "", text
        )
        raise ValueError(f"{text.strip()} (see rankcode --help)") from None
