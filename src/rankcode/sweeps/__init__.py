"""Many runs with different options, and the best trade-offs of accuracy against steps read among all of them."""

from rankcode.sweeps.front import pick
from rankcode.sweeps.sweep import run_sweep, sweep
from rankcode.sweeps.sweep_folder import SweepFolder

__all__ = ["SweepFolder", "pick", "run_sweep", "sweep"]
