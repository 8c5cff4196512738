"""Command-line arguments from a dataclass with the standard library alone, for machines without tyro.

The same flags as tyro gives: a field without a default is positional, a nested dataclass adds its fields.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def parse(commands: dict[str, type], argv: list[str] | None = None) -> Any:
    """The command that the arguments name, as an instance of its dataclass."""
    parser = argparse.ArgumentParser(prog="rankcode")
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, kind in commands.items():
        description = (kind.__doc__ or "").strip()
        _add(subparsers.add_parser(name, help=description.splitlines()[0], description=description), kind)
    arguments = vars(parser.parse_args(argv))
    return _build(commands[arguments["command"]], arguments)


def _add(parser: argparse.ArgumentParser, kind: type) -> None:
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint, required = hints[field.name], field.default is MISSING and field.default_factory is MISSING
        if is_dataclass(hint):
            _add(parser, hint)  # type: ignore[arg-type]
            continue
        options: dict[str, Any] = {} if required else {"default": field.default}
        if get_origin(hint) in (Union, UnionType):  # X | None
            hint = next(choice for choice in get_args(hint) if choice is not type(None))
        if hint is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(hint) is Literal:
            options["choices"] = get_args(hint)
        elif get_origin(hint) is tuple:
            options.update(nargs="+", type=get_args(hint)[0])
        else:
            options["type"] = hint
        name = field.name if required else "--" + field.name.replace("_", "-")
        parser.add_argument(name, **options)


def _build(kind: type, arguments: dict[str, Any]) -> Any:
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            values[field.name] = _build(hints[field.name], arguments)  # type: ignore[arg-type]
        else:
            value = arguments[field.name]
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
