"""Means of gradients between peers: what Allreduce-SGD and eager-SGD do to the numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asyncsim.algorithms.base import Context, Message, PeerAlgorithm, State, algorithm
from asyncsim.algorithms.parts import Nesterov, scaled, zeros_like
from asyncsim.errors import InputError
from asyncsim.records import register
from asyncsim.trace import Trace
from asyncsim.vocabulary import MERGE, PUBLISH, VERBS


@register("eager_sgd")
@algorithm
class EagerSGD(Nesterov, PeerAlgorithm):
    """Each peer adds up its gradients until they are sent; the sum over all that were sent moves the model.

        gradient: a = a + g + wd x
        message (keep 0): a, and a = 0;    merge (keep 1): G = take mix;  v = gamma v + G;  x = x - eta v
        message (keep 1): x;               merge (keep 0): x = mix, an average of models

    The mix divides by P, whoever has contributed (a late peer's gradients come with its next message). The momentum is
    each peer's own. Peer: 3 buffers, without momentum 2; its message is two more, of which one travels. Eager-SGD: Li
    et al. (PPoPP 2020).
    """

    protocol = "eager"
    takes = ("gradients",)

    def check(self, trace: Trace) -> None:
        merges, sends = trace.verb == MERGE, trace.verb == PUBLISH
        odd = merges & ~((trace.keep == 1) | ((trace.keep == 0) & (trace.take == 1)))
        odd |= sends & (trace.keep != 0) & (trace.keep != 1)
        if odd.any():
            r = int(np.argmax(odd))
            raise InputError(
                f"keeps {trace.keep[r]:g}; of gradients all is sent (keep 0) and added (keep 1), of models nothing "
                "leaves (keep 1) and an average takes their place (keep 0, take 1)",
                f"row {r}, {VERBS[trace.verb[r]]}",
            )
        if np.any(merges) and np.all(trace.keep[sends] == 1):
            what = "no message of this trace carries gradients (keep 0): they would never move a model"
            raise InputError(f"{what}; {self.name} normally runs on {self.protocol}", "trace")

    def init(self, params: Any) -> State:
        return {**self.buffers(params), "gradients": zeros_like(params)}

    def local(self, state: State, gradient: Any, context: Context) -> State:
        gradients = jax.tree.map(jnp.add, state["gradients"], self.decayed(gradient, state["params"]))
        return {**state, "gradients": gradients}

    def outgoing(self, state: State, context: Context) -> tuple[State, Message]:
        message = {"params": state["params"], "gradients": scaled(1 - context.keep, state["gradients"])}
        return {**state, "gradients": scaled(context.keep, state["gradients"])}, message

    def merge(self, state: State, mix: Message, context: Context) -> State:
        new, _ = self.descend(state, scaled(context.take, mix["gradients"]), context.learning_rate)
        averaged = {**state, "params": mix["params"]}
        return jax.tree.map(lambda x, y: jnp.where(context.keep == 1, x, y), new, averaged)

    def restart(self, mix: Message) -> State:
        return self.init(mix["params"])


@register("allreduce_sgd")
@algorithm
class AllreduceSGD(EagerSGD):
    """Synchronous SGD between peers: an all-reduce of gradients at every step; all models stay the same.

    The rule of ``eager_sgd`` where nobody is late: G is the mean of all gradients.
    """

    protocol = "allreduce"
