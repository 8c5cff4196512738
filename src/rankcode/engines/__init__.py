"""How a network is run through time.

Each engine is a module with `can_run` and `run`: see `rankcode.engines.run.Engine`. Every engine gives what `reference`
gives, within the rounding of its precision. `choose` returns the engine that `engine="auto"` takes, and why.
"""

from rankcode.engines.choose import ENGINES, Choice, choose, run
from rankcode.engines.run import Engine, Keep, Run

__all__ = ["ENGINES", "Choice", "Engine", "Keep", "Run", "choose", "run"]
