"""A small residual network for classification of images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import jax

from asyncsim.data.data_sets import DataSet, Digits
from asyncsim.errors import InputError
from asyncsim.problems.classifier import Classifier
from asyncsim.problems.layers import check_images, convolution, dense, new_convolution, new_dense
from asyncsim.problems.norms import batch_norm, group_norm, new_norm, new_statistics
from asyncsim.records import Count, Fraction, checked, register


@register("resnet")
@checked
class ResNet(Classifier):
    """Small residual network: blocks of two 3x3 convolutions in stages, each but the first halving the image.

    He et al., CVPR 2016: a convolution with norm and ReLU, then for each of the ``channels`` so many ``blocks``,
    relu(x + f(x)) with f = convolution, norm, ReLU, convolution, norm; where a block changes the shape, a 1x1
    convolution with norm takes the place of x. Then the mean over the image, and softmax.

    ``stride``: of the first convolution; 2 halves large images at once, and makes all about 4 times cheaper.
    ``norm``: ``"group"`` (each image's channels in ``groups`` groups), ``"batch"`` or ``"none"`` (a bias alone). Batch
    norm trains with the statistics of the mini-batch and is evaluated with moving averages, the model's extra:
    ``momentum`` x kept + (1 - momentum) x the mini-batch's.
    """

    data_set: DataSet = Digits()
    channels: tuple[Count, ...] = (8, 16, 32)
    blocks: Count = 1
    stride: Count = 1
    norm: Literal["group", "batch", "none"] = "group"
    groups: Count = 4
    momentum: Fraction = 0.9

    evaluated_at_once = 500

    def validate(self) -> None:
        if not self.channels:
            raise InputError("needs at least one", "channels")
        check_images(self.data_set, len(self.channels) - 1 + (self.stride - 1).bit_length())
        odd = [c for c in self.channels if c % self.groups]
        if self.norm == "group" and odd:
            raise InputError(f"{odd[0]} channels cannot be cut into {self.groups} groups", "groups")

    def _convolutions(self) -> Iterator[tuple[str, int, int, int, int]]:
        """Of each convolution: its name, kernel, channels before and after, stride."""
        before = self.channels[0]
        yield "first", 3, self.data_set.shape[2], before, self.stride
        for stage, after in enumerate(self.channels):
            for block in range(self.blocks):
                name, stride = f"stage{stage}_block{block}", 2 if stage and not block else 1
                yield f"{name}_a", 3, before, after, stride
                yield f"{name}_b", 3, after, after, 1
                if before != after or stride > 1:
                    yield f"{name}_shortcut", 1, before, after, stride
                before = after

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        params: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for k, (name, kernel, before, after, _) in enumerate(self._convolutions()):
            weight = new_convolution(jax.random.fold_in(key, k), kernel, before, after)
            norm = {"offset": jax.numpy.zeros(after)} if self.norm == "none" else new_norm(after)
            params[name] = {"weight": weight, **norm}
            if self.norm == "batch":
                extra[name] = new_statistics(after)
        last = jax.random.fold_in(key, len(params))
        params["last"] = new_dense(last, self.channels[-1], self.data_set.num_classes, gain=1.0)
        return params, extra or ()

    def forward(self, params: Any, extra: Any, x: jax.Array, training: bool) -> tuple[jax.Array, Any]:
        kept: Any = dict(extra) if self.norm == "batch" else ()
        strides = {name: stride for name, *_, stride in self._convolutions()}

        def normed(name: str, x: jax.Array) -> jax.Array:
            layer = params[name]
            x = convolution(x, layer["weight"], strides[name])
            if self.norm == "group":
                return group_norm(layer, x, self.groups)
            if self.norm == "batch":
                x, kept[name] = batch_norm(layer, kept[name], x, self.momentum, training)
                return x
            return x + layer["offset"]

        x = jax.nn.relu(normed("first", x.reshape(-1, *self.data_set.shape)))
        for stage in range(len(self.channels)):
            for block in range(self.blocks):
                name = f"stage{stage}_block{block}"
                inner = normed(f"{name}_b", jax.nn.relu(normed(f"{name}_a", x)))
                shortcut = f"{name}_shortcut"
                x = jax.nn.relu(inner + (normed(shortcut, x) if shortcut in strides else x))
        return dense(params["last"], x.mean((1, 2))), kept
