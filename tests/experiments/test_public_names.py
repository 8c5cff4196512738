"""Experiments use only what a user can use: the public names, and modules that docs/api.md names."""

import ast
import importlib
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import rankcode
from rankcode import experiments

FOLDER = Path(experiments.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
DOCUMENTED = set(re.findall(r"`(rankcode\.[\w.]+)`", PAGE))
FILES = sorted(FOLDER.rglob("*.py"))


def public():
    """The public names, and those of the public modules."""
    for name in rankcode.__all__:
        yield (part := getattr(rankcode, name))
        yield from (getattr(part, inner) for inner in getattr(part, "__all__", ()))


def imports_of(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rankcode"):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(FOLDER).as_posix())
def test_experiments_use_only_what_a_user_can_use(file):
    known = list(public())
    for module, name in imports_of(file):
        if module.startswith("rankcode.experiments") or module in DOCUMENTED or f"{module}.{name}" in DOCUMENTED:
            continue
        part = getattr(importlib.import_module(module), name)
        assert any(part is each for each in known), f"{module}.{name} is neither public nor named in docs/api.md"
