"""Imports point one way, and the core needs torch, numpy and safetensors alone, the command line cyclopts too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rankcode

ROOT = Path(rankcode.__file__).parent
# A module may import those of its own line and of the lines above it, wherever in the file the import stands.
ORDER = [
    "decision state progress device_constants models saving.files compiled",
    "rules",
    "data",
    "front_ends",
    "tasks",
    "readouts cells network",
    "engines",
    "checks",
    "objectives inference metrics",
    "stopping",
    "plots",
    "saving",
    "training",
    "prediction streaming estimator ray_workers",
    "sharded_prediction",
    "export",
    "bench experiments serve sweeps",
    "cli __main__",
]
PLACES = {name: place for place, line in enumerate(ORDER) for name in line.split()}
MAY_NEED_EXTRAS = {"estimator", "plots", "bench", "experiments", "serve"}
CORE = {"rankcode", "torch", "numpy", "safetensors"} | sys.stdlib_module_names
EXTRAS = [
    "matplotlib",
    "sklearn",
    "tensorboard",
    "sounddevice",
    "soundfile",
    "soxr",
    "pyarrow",
    "triton",
    "onnx",
    "onnxruntime",
    "fastapi",
    "uvicorn",
    "websockets",
    "ray",
    "optuna",
    "pandas",
]


def imports_of(path):
    """(name, whether it runs when the module is loaded) of every import in a file."""
    package = ["rankcode", *path.relative_to(ROOT).parent.parts]

    def visit(node, loading):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, loading) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                above = package[: len(package) - child.level + 1] if child.level else []
                base = ".".join([*above, *([child.module] if child.module else [])])
                # `from rankcode.saving import files` imports rankcode.saving.files.
                yield from ((f"{base}.{alias.name}", loading) for alias in child.names)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                types_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from visit(child, loading and not inside and not types_only)

    return set(visit(ast.parse(path.read_text()), True))


def entry(name):
    """rankcode.cells.lstm.LSTM → cells, the entry of ORDER it belongs to; None for what is not ours."""
    parts = name.split(".")
    if parts[0] != "rankcode" or len(parts) == 1:
        return None
    found = [key for key in (".".join(parts[1:3]), parts[1]) if key in PLACES]
    assert found, f"{name} has no place in the order of imports"
    return found[0]


def module(path):
    """The dotted name of a file."""
    return ".".join(["rankcode", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())


@every_file
def test_imports_point_one_way(path):
    own = entry(module(path))
    for name, _ in imports_of(path):
        other = entry(name)
        assert other is None or PLACES[other] <= PLACES[own], f"{module(path)} imports {name}"


def test_entries_of_one_line_do_not_import_each_other_in_a_circle():
    graph = {}
    for path in FILES:
        own = entry(module(path))
        found = {entry(name) for name, _ in imports_of(path)}
        graph.setdefault(own, set()).update(found - {None, own})
    while leaves := {name for name, others in graph.items() if not others & graph.keys()}:
        graph = {name: others for name, others in graph.items() if name not in leaves}
    assert not graph, f"imports go in a circle among {sorted(graph)}"


def test_every_entry_of_the_order_exists():
    assert set(PLACES) <= {entry(module(path)) for path in FILES}


@every_file
def test_the_core_loads_its_dependencies_alone(path):
    if entry(module(path)) in MAY_NEED_EXTRAS:
        pytest.skip("needs an extra, and names it where it is missing")
    kernels = path.parent == ROOT / "engines" / "triton" and path.name != "__init__.py"  # loaded where first used
    needed = {name.split(".")[0] for name, loading in imports_of(path) if loading}
    more = {"triton"} if kernels else {"cyclopts"} if entry(module(path)) == "cli" else set()
    assert needed <= CORE | more


def test_the_checker_sees_what_it_should():
    """`imports_of` itself: at the top, inside functions, and modules imported from their package."""
    assert ("rankcode.tasks.spotting.Spotting", True) in imports_of(ROOT / "tasks" / "__init__.py")
    assert ("sklearn.datasets.load_digits", False) in imports_of(ROOT / "tasks" / "temporal_digits.py")
    assert ("rankcode.cells", True) in imports_of(ROOT / "saving" / "description.py")


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
    """Every public name is there, and nothing that is not meant to be."""
    names = """AtEnd AtSpike Audio BadData Batch Curve Decision Detection EarlyClassifier EveryStep FireAt History
    Listener LogMel Network Never Objective OptimalStopping Patience Prediction Report Rule StepThresholds Stream
    StreamPool Switch Threshold Trace Training Tuning UntilSpike cells data decide engines evaluate export_onnx fit
    fit_rule load predict save sweep tasks trace tradeoff tune"""
    assert sorted(rankcode.__all__) == names.split()
    assert all(hasattr(rankcode, name) for name in names.split())
