"""NAG-ASGD: one momentum for all workers, and a look ahead by one step."""

from __future__ import annotations

from asyncsim.algorithms.base import Context, Params, State, algorithm
from asyncsim.algorithms.parts import ServerDescent, look_ahead
from asyncsim.records import Fraction, register


@register("nag_asgd")
@algorithm
class NAGASGD(ServerDescent):
    """Asynchronous SGD with one Nesterov momentum at the server: the baseline that breaks down with many workers.

        v = gamma v + g;  theta = theta - eta v;  send Theta = theta - eta gamma v

    What is sent looks ahead by one update, although N will come before the gradient does. Server: 2 buffers. Named in
    Hakimi et al., DANA, arXiv 1907.11612 (its look ahead is recalled, not read).
    """

    momentum: Fraction = 0.9

    def view(self, state: State, context: Context) -> Params:
        return look_ahead(state["params"], context.learning_rate * self.momentum, state["momentum"])
