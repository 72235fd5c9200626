"""The battery that every method goes through: one row each."""

import jax.numpy as jnp
import pytest

from asyncsim.algorithms import ASGD, SGD, SGP, SSGD, Algorithm, Averaging, ServerAlgorithm, algorithm
from asyncsim.errors import InputError
from asyncsim.testing import check_algorithm

METHODS = {
    "sgd": [SGD(0.1), SGD(0.1, 0.9), SGD(0.1, 0.9, nesterov=True)],
    "asgd": [ASGD(0.1), ASGD(0.1, 0.9, weight_decay=1e-3)],
    "ssgd": [SSGD(0.1), SSGD(0.1, 0.9)],
    "averaging": [Averaging(0.1), Averaging(0.1, 0.9, weight_decay=1e-3, nesterov=True)],
    "sgp": [SGP(0.1), SGP(0.1, 0.9, weight_decay=1e-3)],
}


@pytest.mark.parametrize("method", [m for row in METHODS.values() for m in row], ids=repr)
def test_battery(method):
    check_algorithm(method)


def test_every_registered_method_has_its_row():
    assert set(METHODS) == {name for name, cls in Algorithm.members.items() if cls.__module__.startswith("asyncsim.")}
    for name, row in METHODS.items():
        assert all(m.name == name for m in row)


@algorithm
class Fine(ServerAlgorithm):
    """theta = theta - eta g."""

    learning_rate: float = 0.1

    def apply(self, state, message, context):
        return {"params": _descend(state["params"], message, context.learning_rate)}


@algorithm
class Steers(Fine):
    """Uses a traced number in Python."""

    def apply(self, state, message, context):
        return super().apply(state, message, context._replace(learning_rate=float(self.learning_rate)))


@algorithm
class Divides(Fine):
    """Normalises by the gradient's norm without a guard."""

    def apply(self, state, message, context):
        norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in _leaves(message)))
        return super().apply(state, _scale(message, 1 / norm), context)


class Undecorated(ServerAlgorithm):
    """theta = theta - eta g."""

    learning_rate = 0.1


@algorithm
class Silent(Fine):
    learning_rate: float = 0.1


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)


def _scale(tree, factor):
    import jax

    return jax.tree.map(lambda x: factor * x, tree)


def _descend(params, gradient, rate):
    import jax

    return jax.tree.map(lambda x, g: x - rate * g, params, gradient)


def test_a_users_method_passes():
    check_algorithm(Fine(0.2))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (Divides(), "NaN where the gradient is zero"),
        (Undecorated(), "decorate it with @algorithm"),
        (Silent(), "no docstring"),
        (object(), "neither a ServerAlgorithm nor a PeerAlgorithm"),
    ],
)
def test_what_breaks_the_contract_is_named(method, message):
    with pytest.raises(AssertionError, match=message):
        check_algorithm(method)


def test_a_traced_number_used_in_python_is_named():
    with pytest.raises(Exception, match=r"[Tt]racer|[Cc]oncret"):
        check_algorithm(Steers())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASGD(-1.0), "learning_rate: expected a number > 0, got -1"),
        (lambda: ASGD(0.1, 1.0), "momentum: expected a number >= 0 and < 1, got 1"),
        (lambda: ASGD(0.1, "much"), "momentum: expected a number >= 0 and < 1, got 'much'"),
        (lambda: SGD(0.1, nesterov=True), "nesterov: needs a momentum"),
    ],
)
def test_wrong_hyper_parameters(make, message):
    with pytest.raises(InputError, match=message):
        make()
