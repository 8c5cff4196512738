"""The environment of a process that a test starts: one thread, and the rankcode that is tested."""

import os
from pathlib import Path

import rankcode

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(rankcode.__file__).parents[1])}
