"""NAG-ASGD: one momentum for all workers, and a look ahead by one step."""

from __future__ import annotations

from asyncsim.algorithms.base import Context, Params, State, algorithm
from asyncsim.algorithms.parts import ServerDescent, moved
from asyncsim.records import Fraction, register


@register("nag_asgd")
@algorithm
class NAGASGD(ServerDescent):
    """Asynchronous SGD with one Nesterov momentum at the server: the baseline that breaks down with many workers.

        v = gamma v + g;  theta = theta - eta v;  send Theta = theta - eta gamma v

    What is sent looks ahead by one update, although on average N - 1 others come before the gradient does. Server: 2
    buffers. A baseline of Hakimi et al., DANA, arXiv 1907.11612 (rule recalled, its look ahead with less certainty).
    """

    momentum: Fraction = 0.9

    def view(self, state: State, context: Context) -> Params:
        return moved(state["params"], context.learning_rate * self.momentum, state["momentum"])
