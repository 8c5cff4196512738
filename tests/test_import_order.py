"""Imports point one way, and the core needs torch, numpy and safetensors alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rankcode

ROOT = Path(rankcode.__file__).parent
# Each module may import those of its own line and of the lines above it.
ORDER = [
    {
        "progress",
        "whole_file",
        "folder_lock",
        "decision",
        "state",
        "rules",
        "data",
        "downloads",
        "constants",
        "recorded",
    },
    {"audio", "audio_files", "latency", "standardise", "front_ends", "feature_cache"},
    {"cells", "network"},
    {"engines"},
    {"checks"},
    {"objectives", "inference"},
    {"agreement"},
    {"metrics", "model_file", "bench"},
    {"training", "training_config", "training_state", "run_folder", "distributed"},
    {"tasks", "plots"},
    {"prediction", "standard_network", "settings"},
    {"experiments", "demo"},
    {"commands", "arguments"},
    {"cli", "__main__"},
]
# Imported where they are used, never while the module is loaded.
ONLY_INSIDE_FUNCTIONS = {"run_folder": {"plots"}}
MAY_NEED_EXTRAS = {"plots", "cli", "demo", "experiments", "__main__"}
EXTRAS = ["matplotlib", "sklearn", "tyro", "tensorboard", "soundfile", "soxr", "triton"]


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(path):
    """(name, whether it runs when the module is loaded) of every import in a file; not those for types only."""
    package = ["rankcode", *path.relative_to(ROOT).parent.parts]

    def visit(node, loading):
        for child in ast.iter_child_nodes(node):
            if is_type_checking(child):
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, loading) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                above = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*above, *([child.module] if child.module else [])])
                # `from rankcode import cells` imports rankcode.cells.
                bare = base == "rankcode"
                yield from ((f"{base}.{alias.name}" if bare else base, loading) for alias in child.names)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, loading and not inside)

    return set(visit(ast.parse(path.read_text()), True))


def module_of(name):
    """rankcode.cells.lstm → cells; None for what is not ours."""
    parts = name.split(".")
    return parts[1] if parts[0] == "rankcode" and len(parts) > 1 else None


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())


def place(module):
    places = [number for number, line in enumerate(ORDER) if module in line]
    assert places, f"{module} has no place in the order of imports"
    return places[0]


def own_name(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@every_file
def test_imports_point_one_way(path):
    module = own_name(path)
    for name, loading in imports_of(path):
        other = module_of(name)
        if other is None or (not loading and other in ONLY_INSIDE_FUNCTIONS.get(module, ())):
            continue
        assert place(other) <= place(module), f"{module} imports {name}"


def test_modules_of_one_line_do_not_import_each_other_in_a_circle():
    graph = {}
    for path in FILES:
        found = {module_of(name) for name, loading in imports_of(path) if loading}
        graph.setdefault(own_name(path), set()).update(found - {None, own_name(path)})
    while leaves := {module for module, others in graph.items() if not others & graph.keys()}:
        graph = {module: others for module, others in graph.items() if module not in leaves}
    assert not graph, f"imports go in a circle among {sorted(graph)}"


@every_file
def test_tasks_know_only_data(path):
    sound = {"audio", "audio_files", "feature_cache"}
    data = {"data", "constants", "downloads", "latency", "standardise", "front_ends", *sound}
    if own_name(path) == "tasks":
        assert {module_of(name) for name, _ in imports_of(path)} <= {None, "tasks", *data}


@every_file
def test_the_core_loads_torch_numpy_and_safetensors_alone(path):
    if own_name(path) in MAY_NEED_EXTRAS:
        return
    allowed = {"rankcode", "torch", "numpy", "safetensors"} | sys.stdlib_module_names
    if path.parent == ROOT / "engines" / "triton" and path.name != "__init__.py":  # loaded where it is first used
        allowed |= {"triton"}
    needed = {name.split(".")[0] for name, loading in imports_of(path) if loading}
    assert needed <= allowed, needed - allowed


def test_the_checker_sees_what_it_should(tmp_path):
    """`imports_of` itself: nested, relative and for types."""
    path = ROOT / "tasks" / "__init__.py"
    assert ("rankcode.tasks.spotting", True) in imports_of(path)
    assert ("sklearn.datasets", False) in imports_of(ROOT / "tasks" / "temporal_digits.py")
    assert ("rankcode.cells", True) in imports_of(ROOT / "model_file.py")


def run_without_extras(code):
    """Run a program in which the extras cannot be imported."""
    block = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
"""
    done = subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_works_without_extras():
    out = run_without_extras("""
import torch
import rankcode as rc
network = rc.Network(rc.cells.LSTM(3, 4), 2)
inputs, labels = torch.randn(5, 6, 3), torch.tensor([0, 1, 0, 1, 0])
loss, decision = rc.AtSpike(threshold=0.9, beta=0.1)(network, inputs, labels)
loss.backward()
rc.evaluate(network, (inputs, labels)), rc.tradeoff(network, (inputs, labels)), rc.trace(network, inputs)
try:
    import matplotlib
except ImportError as error:
    print(error)
""")
    assert out == "matplotlib is blocked\n"


def test_importing_the_package_loads_no_extra():
    code = f"""
import sys
import rankcode
print([name for name in {EXTRAS} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_the_public_names():
    names = """Network cells data engines tasks Batch Decision Trace decide trace Curve Report evaluate tradeoff load
    save AtEnd AtSpike EveryStep Objective Switch UntilSpike FireAt Never Patience Rule StepThresholds Threshold History
    Training fit"""
    missing = [name for name in names.split() if not hasattr(rankcode, name)]
    assert not missing
