"""Many simulations: what is varied, on many processes, into one table. Nothing that is finished is ever done again."""

from asyncsim.sweeps.results import Sweep, load_sweep
from asyncsim.sweeps.sweeping import sweep

__all__ = ["Sweep", "load_sweep", "sweep"]
