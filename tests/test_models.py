"""Each model's parts against another way to compute them, and its size by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asyncsim.algorithms import ASGD, Averaging
from asyncsim.data import Blobs, Digits, FashionMNIST, SparseTeacher, Teacher, Text
from asyncsim.errors import InputError
from asyncsim.problems import MLP, CharTransformer, ConvNet, Logistic, ResNet
from asyncsim.problems.char_transformer import attention
from asyncsim.problems.layers import convolution, max_pool
from asyncsim.problems.norms import EPSILON, batch_norm, group_norm, layer_norm
from asyncsim.replaying.preparing import prepare
from asyncsim.replaying.walk import ENGINES
from asyncsim.schedules import Schedule
from asyncsim.testing import small_trace


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


ODD, EVEN = (7, 10), (8, 8)
CONVOLUTIONS = [(kernel, stride, ODD) for kernel in (1, 2, 3) for stride in (1, 2, 3)]
CONVOLUTIONS += [(5, 2, ODD), (2, 2, EVEN), (3, 1, EVEN), (3, 2, EVEN)]


@pytest.mark.parametrize(("kernel", "stride", "size"), CONVOLUTIONS)
def test_convolution_against_that_of_jax(kernel, stride, size):
    x, weight = normal(2, *size, 3), normal(kernel, kernel, 3, 4, seed=1)

    def theirs(x, weight):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, (stride, stride), "SAME", dimension_numbers=numbers)

    expected = theirs(x, weight)
    found = convolution(jnp.asarray(x), jnp.asarray(weight), stride)
    assert found.shape == expected.shape
    assert np.asarray(found) == pytest.approx(np.asarray(expected), abs=1e-12)
    onto = normal(*expected.shape, seed=2)
    ours = jax.grad(lambda *both: jnp.vdot(convolution(*both, stride), onto), (0, 1))(
        jnp.asarray(x), jnp.asarray(weight)
    )
    other = jax.grad(lambda *both: jnp.vdot(theirs(*both), onto), (0, 1))(x, weight)
    for a, b in zip(ours, other, strict=True):
        assert np.asarray(a) == pytest.approx(np.asarray(b), abs=1e-10)


def test_pooling_takes_the_largest_of_each_square():
    x = normal(2, 5, 6, 3)
    expected = x[:, :4].reshape(2, 2, 2, 3, 2, 3).max((2, 4))
    assert np.array_equal(max_pool(jnp.asarray(x)), expected)


def test_norms_against_their_formulas():
    x, layer = normal(4, 3, 5, 6) * 2 + 1, {"scale": normal(6, seed=1), "offset": normal(6, seed=2)}
    expected = np.empty_like(x)
    for n in range(4):
        for group in (slice(0, 3), slice(3, 6)):
            part = x[n, :, :, group]
            expected[n, :, :, group] = (part - part.mean()) / np.sqrt(part.var() + EPSILON)
    expected = expected * layer["scale"] + layer["offset"]
    assert np.asarray(group_norm(layer, x, 2)) == pytest.approx(expected, abs=1e-12)

    kept = {"mean": normal(6, seed=3), "variance": normal(6, seed=4) ** 2}
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    found, moved = batch_norm(layer, kept, x, 0.75, training=True)
    expected = (x - mean) / np.sqrt(variance + EPSILON) * layer["scale"] + layer["offset"]
    assert np.asarray(found) == pytest.approx(expected, abs=1e-12)
    assert np.asarray(moved["mean"]) == pytest.approx(0.75 * kept["mean"] + 0.25 * mean)
    assert np.asarray(moved["variance"]) == pytest.approx(0.75 * kept["variance"] + 0.25 * variance)
    found, same = batch_norm(layer, kept, x, 0.75, training=False)
    expected = (x - kept["mean"]) / np.sqrt(kept["variance"] + EPSILON) * layer["scale"] + layer["offset"]
    assert np.asarray(found) == pytest.approx(expected, abs=1e-12)
    assert same is kept

    rows = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    assert np.asarray(layer_norm(layer, x)) == pytest.approx(rows * layer["scale"] + layer["offset"], abs=1e-12)


def test_attention_against_a_transcription():
    n, length, width, heads = 2, 5, 6, 3
    d = width // heads
    x = normal(n, length, width)
    weight, bias, out, last = (
        normal(width, 3 * width, seed=1),
        normal(3 * width, seed=2),
        normal(width, width, seed=3),
        normal(width),
    )
    block = {"queries_keys_values": {"weight": weight, "bias": bias}, "attention_out": {"weight": out, "bias": last}}
    expected = np.zeros((n, length, width))
    for sample in range(n):
        q, k, v = np.split(x[sample] @ weight + bias, 3, axis=1)
        for h in range(heads):
            mine = slice(h * d, (h + 1) * d)
            for i in range(length):
                scores = np.array([q[i, mine] @ k[j, mine] / math.sqrt(d) for j in range(i + 1)])
                weights = np.exp(scores) / np.exp(scores).sum()
                expected[sample, i, mine] = weights @ v[: i + 1, mine]
    expected = expected @ out + last
    assert np.asarray(attention(block, jnp.asarray(x), heads)) == pytest.approx(expected, abs=1e-12)


def test_no_logit_depends_on_a_later_character():
    problem = CharTransformer(Text(context=12), width=16)
    params, _ = jax.jit(problem.init)(jax.random.key(0))
    logits = jax.jit(problem.logits)
    x = problem.data().test["x"][:3]
    before = np.asarray(logits(params, x))
    for place in (0, 5, 11):
        changed = x.copy()
        changed[:, place] = (changed[:, place] + 7) % len(problem.text.vocabulary)
        after = np.asarray(logits(params, changed))
        assert np.array_equal(after[:, :place], before[:, :place])
        assert (np.abs(after[:, place:] - before[:, place:]).max(-1) > 1e-6).all()
    assert np.asarray(logits(params, x[:, :6])) == pytest.approx(before[:, :6], abs=1e-12)


def size(problem):
    return sum(x.size for x in jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0))[0]))


def test_parameters_counted_by_hand():
    assert size(Logistic()) == 64 * 10 + 10
    assert size(Logistic(SparseTeacher(features=500, classes=3))) == 500 * 3 + 3
    assert size(ConvNet()) == (9 * 8 + 8) + (9 * 8 * 16 + 16) + (2 * 2 * 16 * 32 + 32) + (32 * 10 + 10)
    assert size(ConvNet(kernel=5, channels=(3,), hidden=())) == (25 * 3 + 3) + (4 * 4 * 3 * 10 + 10)
    stages = [9 * 8 + 9 * (8 * 8 + 8 * 8), 9 * (8 * 16 + 16 * 16) + 8 * 16, 9 * (16 * 32 + 32 * 32) + 16 * 32]
    norms = 2 * (3 * 8 + 3 * 16 + 3 * 32)
    assert size(ResNet()) == sum(stages) + norms + (32 * 10 + 10)
    problem = CharTransformer()
    characters, w = len(problem.text.vocabulary), 32
    block = (w * 3 * w + 3 * w) + (w * w + w) + (w * 4 * w + 4 * w) + (4 * w * w + w) + 4 * w
    assert size(problem) == characters * w + 64 * w + 2 * block + 2 * w + (w * characters + characters)
    assert 20_000 < size(problem) < 60_000


def test_what_batch_norm_keeps():
    _, extra = jax.eval_shape(ResNet(norm="batch").init, jax.random.key(0))
    assert len(extra) == 9
    assert jax.tree.map(jnp.shape, extra["stage1_block0_shortcut"]) == {"mean": (16,), "variance": (16,)}
    assert jax.eval_shape(ResNet(norm="group").init, jax.random.key(0))[1] == ()
    # in training the batch's statistics count, in testing those kept: then a sample knows nothing of the others
    problem = ResNet(channels=(4,), norm="batch")
    params, extra = problem.init(jax.random.key(0))
    x = Digits().load().test["x"][:8]
    forward = jax.jit(problem.forward, static_argnames="training")
    alone, together = (forward(params, extra, x[:k], training=False)[0][0] for k in (1, 8))
    assert np.asarray(alone) == pytest.approx(np.asarray(together), abs=1e-10)
    alone, together = (forward(params, extra, x[:k], training=True)[0][0] for k in (2, 8))
    assert np.abs(alone - together).max() > 1e-3


def test_sparse_and_dense_features_give_the_same():
    sparse = Logistic(SparseTeacher(features=30, nonzeros=4, classes=3, train=50, test=10), l2=0.1)
    data = sparse.data().train
    x = np.zeros((50, 30))
    np.add.at(x, (np.arange(50)[:, None], data["x"]["index"]), data["x"]["value"])
    dense = Logistic(Teacher(features=30, classes=3, train=50, test=10), l2=0.1)
    params = {"weight": normal(30, 3), "bias": normal(3, seed=1)}
    key = jax.random.key(0)
    (a, ga), (b, gb) = (
        jax.value_and_grad(lambda p, problem=problem, x=x: problem.loss(p, (), {"x": x, "y": data["y"]}, key)[0])(
            params
        )
        for problem, x in ((sparse, data["x"]), (dense, x))
    )
    assert float(a) == pytest.approx(float(b), abs=1e-7)  # values are float32
    for one, other in zip(jax.tree.leaves(ga), jax.tree.leaves(gb), strict=True):
        assert np.asarray(one) == pytest.approx(np.asarray(other), abs=1e-7)
    # the penalty by hand; the test loss is without
    assert float(a) - float(sparse.metrics(params, (), data)["loss"]) == pytest.approx(
        0.05 * (params["weight"] ** 2).sum()
    )


@pytest.mark.parametrize("statistics", ["mean", "shared"])
@pytest.mark.parametrize("kind", ["server", "peers"])
@pytest.mark.parametrize("model", ["convnet", "resnet"])
def test_no_convolution_and_no_copied_pool_in_the_compiled_program(model, kind, statistics):
    problem = {"convnet": ConvNet(channels=(5,), hidden=(7,)), "resnet": ResNet(channels=(5,), norm="batch")}[model]
    method = {"server": ASGD(0.1), "peers": Averaging(0.1)}[kind]
    trace = small_trace(kind, num_workers=9, local_steps=False)
    cuts = [0, len(trace)]
    with jax.enable_x64(False):
        setting, _ = prepare(
            trace, method, problem, seed=0, schedule=Schedule(), cuts=cuts, measures=False, statistics=statistics
        )
        engine = ENGINES["scan", kind](setting)
        text = engine.compiled_text()
    assert "while(" in text
    assert "convolution(" not in text
    shapes = {f"f32[{','.join(map(str, x.shape))}]" for x in jax.tree.leaves(engine.pools)}
    copies = [line.strip() for line in text.splitlines() if " copy(" in line]
    assert [line for line in copies if any(shape in line for shape in shapes)] == []


def test_models_say_what_they_need():
    with pytest.raises(InputError, match=r"data_set: a convolution needs images.* blobs has samples of \(20,\)"):
        ConvNet(Blobs())
    with pytest.raises(
        InputError, match="data_set: the samples of sparse_teacher are sparse: only logistic takes them"
    ):
        MLP(SparseTeacher())
    with pytest.raises(InputError, match="channels: images of 8x8 can be halved 3 times, not 4"):
        ConvNet(channels=(2, 2, 2, 2))
    with pytest.raises(InputError, match="groups: 6 channels cannot be cut into 4 groups"):
        ResNet(channels=(8, 6))
    with pytest.raises(InputError, match="channels: needs at least one"):
        ResNet(channels=())
    with pytest.raises(InputError, match="heads: a width of 32 cannot be cut into 5 heads"):
        CharTransformer(heads=5)
    assert ConvNet(FashionMNIST(), channels=(4, 4, 4, 4)).data_set.num_features == 784
