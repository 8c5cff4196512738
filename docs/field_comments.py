"""Shows the fields of a class as one table in the API reference.

The description of a field is its docstring or, if it has none, the comment at the end of its line.
"""

from __future__ import annotations

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        for module in modules(pkg):
            for each in module.classes.values():
                if not each.is_alias:
                    tabulate(each)


def modules(module: griffe.Module):
    yield module
    for each in module.modules.values():
        if not each.is_alias:
            yield from modules(each)


def tabulate(of: griffe.Class) -> None:
    """Move the fields that have a description into the docstring of their class."""
    lines = []
    for name, field in list(of.attributes.items()):
        if field.is_alias or name.startswith("_") or not (text := description(field)):
            continue
        lines.append(f"    {name} ({field.annotation}): {text}")
        del of.members[name]
    if lines:
        above = [of.docstring.value, ""] if of.docstring else []
        of.docstring = griffe.Docstring("\n".join([*above, "Attributes:", *lines]), parent=of)


def description(field: griffe.Attribute) -> str:
    if field.docstring is not None:
        return " ".join(field.docstring.value.split())
    if field.lineno is None or field.annotation is None:
        return ""
    line = field.lines_collection[field.filepath][(field.endlineno or field.lineno) - 1]
    comment = line.partition("  # ")[2]
    return "" if comment.startswith(("noqa", "type:")) else comment
