"""What is learned along a trace: real gradients on the stale parameters that its timing implies."""

from asyncsim.replaying.evaluation import Every, Target
from asyncsim.replaying.sizes import Memory, costs_of, memory
from asyncsim.replaying.walk import replay

__all__ = ["Every", "Memory", "Target", "costs_of", "memory", "replay"]
