"""What an algorithm is told, and what belongs to whom: by hand, in both engines."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asyncsim.algorithms import ASGD, Averaging, PeerAlgorithm, ServerAlgorithm, algorithm
from asyncsim.data import Data
from asyncsim.problems import Problem, Quadratic
from asyncsim.recorder import Recorder
from asyncsim.records import checked
from asyncsim.replaying import Every, replay
from asyncsim.replaying.preparing import prepare
from asyncsim.replaying.walk import ENGINES
from asyncsim.schedules import Schedule
from asyncsim.testing import small_trace

NUMBERS = ("learning_rate", "worker", "step", "staleness", "count", "keep", "take", "included")


def told(context, *more):
    """All that a context says, as one vector; the key as a number drawn from it."""
    numbers = [jnp.asarray(getattr(context, name), float) for name in NUMBERS]
    return jnp.stack([*numbers, jax.random.uniform(context.key), *(jnp.asarray(x, float) for x in more)])


@algorithm
class ServerWitness(ServerAlgorithm):
    """theta = theta - eta g, and what each method was told: the last, and the sum over all calls of its square."""

    learning_rate: float = 0.5

    def init(self, params, num_workers):
        return {"params": params, "view": jnp.zeros(2), "receive": jnp.zeros((2, 10)), "update": jnp.zeros((2, 10))}

    def start(self, params):
        return jnp.zeros((2, 10))

    def local(self, own, gradient, context):
        return own + 0.001 * told(context, jnp.sum(context.sent["x"]))

    def outgoing(self, own, gradient, context):
        now = told(context, jnp.sum(context.sent["x"]))
        own = jnp.stack([now, own[1] + now**2])
        return own, (gradient, own)

    def receive(self, state, kept, message, context):
        now = told(context, jnp.sum(context.sent["x"]))
        return kept, (message[0], jnp.stack([now, now**2]), message[1])

    def apply(self, state, message, context):
        gradient, received, _ = message
        now = told(context, jnp.sum(context.sent["x"]))
        return {
            "params": jax.tree.map(lambda x, g: x - context.learning_rate * g, state["params"], gradient),
            "view": state["view"],
            "receive": received + jnp.stack([jnp.zeros(10), state["receive"][1]]),
            "update": jnp.stack([now, state["update"][1] + now**2]),
        }

    def view(self, state, context):
        # a look-ahead by the learning rate of the update that made this version
        return jax.tree.map(lambda x: x - 0.01 * context.learning_rate * (1 + context.worker), state["params"])


@algorithm
class PeerWitness(PeerAlgorithm):
    """Local SGD that remembers what each method was told."""

    learning_rate: float = 0.5

    def init(self, params):
        return {"params": params, **{name: jnp.zeros((2, 9)) for name in ("local", "outgoing", "merge")}}

    def local(self, state, gradient, context):
        params = jax.tree.map(lambda x, g: x - context.learning_rate * g, state["params"], gradient)
        return {**state, "params": params, "local": self._and(state["local"], context)}

    def outgoing(self, state, context):
        return {**state, "outgoing": self._and(state["outgoing"], context)}, state["params"]

    def merge(self, state, mix, context):
        return {**super().merge(state, mix, context), "merge": self._and(state["merge"], context)}

    def _and(self, before, context):
        now = told(context)
        return jnp.stack([now, before[1] + now**2])


def state_at_the_end(trace, method, engine, schedule=None):
    """The state of a server, or of all peers, after a trace."""
    with jax.enable_x64(True):
        schedule, cuts = schedule or Schedule(), [0, len(trace) // 2, len(trace)]
        problem = Quadratic(samples=64)
        setting, _ = prepare(trace, method, problem, seed=3, schedule=schedule, cuts=cuts, measures=False)
        started = ENGINES[engine, trace.kind](setting)
        for cut in cuts:
            started.advance(cut)
        if engine == "scan":
            state = started.carry[0] if trace.kind == "server" else started.carry[0][0]
        else:
            state = (
                started._state if trace.kind == "server" else jax.tree.map(lambda *x: jnp.stack(x), *started._states)
            )
        return jax.tree.map(np.asarray, state)


@pytest.mark.parametrize("kind", ["server", "peers"])
@pytest.mark.parametrize("seed", range(4))
def test_both_engines_tell_the_same(kind, seed):
    trace = small_trace(kind, seed=seed)
    method = ServerWitness() if kind == "server" else PeerWitness()
    schedule = Schedule(decay="cosine", warmup=1.0, length=5.0)
    scan, rows = (state_at_the_end(trace, method, engine, schedule) for engine in ("scan", "rows"))
    for name in scan:
        for a, b in zip(jax.tree.leaves(scan[name]), jax.tree.leaves(rows[name]), strict=True):
            assert a == pytest.approx(b, abs=1e-10), name


@pytest.mark.parametrize("engine", ["scan", "rows"])
def test_what_a_server_method_is_told(engine):
    log = Recorder(3, "server")
    reads = [log.read(i) for i in range(3)]
    log.apply(2, reads[2])
    log.apply(0, reads[0], weight=0.25, closes=False)
    log.apply(1, reads[1], weight=0.75)
    log.apply(1, log.read(1))
    trace = log.trace()
    state = state_at_the_end(trace.head(len(trace) - 2), ServerWitness(), engine)
    # the update of two, closed by worker 1, whose gradient is its first and one version old
    assert state["update"][0][:5].tolist() == [0.5, 1, 0, 1, 2]
    assert state["receive"][0][:5].tolist() == pytest.approx([0.5, 0.75, 0, 1, 2])
    last = state_at_the_end(trace, ServerWitness(), engine)
    assert last["update"][0][:5].tolist() == [0.5, 1, 1, 0, 1]
    # the view of version 0: 1 - 0.01 x 0.5; then after worker 2: x (1 - 0.5), and its own look-ahead
    first = 1 - 0.005
    second = 1 - 0.5 * first
    third = second - 0.5 * first
    assert last["params"]["x"][0] == pytest.approx(third - 0.5 * (third - 0.01 * 0.5 * 2))


@pytest.mark.parametrize("engine", ["scan", "rows"])
def test_what_a_peer_method_is_told(engine):
    log = Recorder(2, "peers")
    for i in (0, 1, 0):
        log.step(i, log.read(i))
    messages = [log.publish(i, keep=0.75) for i in range(2)]
    log.merge(0, log.mix(messages, [0.5, 0.5]), keep=0.2, take=0.8)
    log.publish(1)
    log.merge(1, log.mix(messages, [0.5, 0.5]), keep=0.4, take=0.6)
    state = state_at_the_end(log.trace(), PeerWitness(), engine)
    # learning rate, worker, step, staleness, count, keep, take, included
    assert state["local"][0][0][:8].tolist() == [0.5, 0, 1, 0, 1, 1, 0, 0]
    assert state["outgoing"][0][0][:8].tolist() == [0.5, 0, 2, 0, 1, 0.75, 0, 0]
    assert state["merge"][0][0][:8].tolist() == [0.5, 0, 2, 0, 1, 0.2, 0.8, 1]
    assert state["merge"][1][0][:8].tolist() == [0.5, 1, 1, 0, 1, 0.4, 0.6, 0]  # it has published since


@algorithm
class Draws(PeerAlgorithm):
    """Adds a random number at each event: the sum tells whether two events drew the same."""

    learning_rate: float = 0.1

    def init(self, params):
        return {"params": params, "drawn": jnp.zeros(20), "next": jnp.int32(0)}

    def _draw(self, state, context):
        drawn = state["drawn"].at[state["next"]].set(jax.random.uniform(context.key))
        return {**state, "drawn": drawn, "next": state["next"] + 1}

    def local(self, state, gradient, context):
        return self._draw(state, context)

    def outgoing(self, state, context):
        return self._draw(state, context), state["params"]

    def merge(self, state, mix, context):
        return self._draw(state, context)


@pytest.mark.parametrize("engine", ["scan", "rows"])
def test_no_random_key_is_used_twice(engine):
    log = Recorder(2, "peers")
    for _ in range(3):
        for i in range(2):
            log.step(i, log.read(i))
            sent = [log.publish(i), log.publish(i)]
            log.merge(i, log.mix(sent, [0.5, 0.5]))
            log.merge(i, log.mix(sent, [0.5, 0.5]))
    drawn = state_at_the_end(log.trace(), Draws(), engine)["drawn"]
    assert len(set(drawn[:, :15].ravel().tolist())) == 30


@checked
class Counting(Problem):
    """A quadratic whose extra counts the gradients that were taken."""

    def init(self, key):
        return {"x": jnp.ones(2)}, {"count": jnp.zeros(())}

    def loss(self, params, extra, batch, key):
        return jnp.sum(params["x"] ** 2), {"count": extra["count"] + 1}

    def metrics(self, params, extra, batch):
        return {"loss": jnp.sum(params["x"] ** 2), "count": extra["count"]}

    def data(self):
        return Data((), ())

    @property
    def num_samples(self):
        return 100


@pytest.mark.parametrize("engine", ["scan", "rows"])
@pytest.mark.parametrize(("kind", "method"), [("server", ASGD(0.1)), ("peers", Averaging(0.1))])
def test_extra_belongs_to_the_worker_and_is_averaged_for_evaluations(engine, kind, method):
    trace = small_trace(kind, local_steps=False)
    run = replay(trace, method, Counting(), engine=engine, every=Every(updates=5))
    done = [np.sum(trace.gradients < np.searchsorted(trace.time, t, side="right")) for t in run.evals["time"]]
    assert run.evals["count"] == pytest.approx(np.array(done) / 3)


def test_peers_in_step_meet_the_same_clock():
    log = Recorder(4, "peers")
    for _ in range(3):
        for i in range(4):
            log.step(i, log.read(i))
    trace = dataclasses.replace(log.trace())
    assert trace.clock[trace.gradients].tolist() == [0] * 4 + [128] * 4 + [256] * 4


def test_gradients_count_in_the_order_in_which_they_were_started():
    """Two of one worker under way at once, the second arrives first: each keeps its own mini-batch."""
    log = Recorder(1, "server")
    first, second = log.read(0), log.read(0)
    log.apply(0, second)
    log.apply(0, first)
    trace = log.trace()
    assert trace.step[trace.gradients].tolist() == [1, 0]
