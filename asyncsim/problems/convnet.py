"""A convolutional network for classification of images."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax

from asyncsim.data.data_sets import DataSet, Digits
from asyncsim.problems.classifier import Classifier
from asyncsim.problems.layers import check_images, convolution, dense, max_pool, new_convolution, new_dense
from asyncsim.records import Count, checked, register


@register("convnet")
@checked
class ConvNet(Classifier):
    """Convolutional network: convolutions of these many channels, each with ReLU and 2x2 max pooling; hidden layers.

    ``kernel``: pixels that a convolution looks at in each direction; ``hidden``: widths of the fully connected layers
    between the last convolution and the logits, with ReLU. He initialisation, biases 0.
    """

    data_set: DataSet = Digits()
    channels: tuple[Count, ...] = (8, 16)
    kernel: Count = 3
    hidden: tuple[Count, ...] = (32,)

    evaluated_at_once = 500

    def validate(self) -> None:
        check_images(self.data_set, len(self.channels))

    def init(self, key: jax.Array) -> tuple[Any, Any]:
        height, width, channels_in = self.data_set.shape
        sides = [side >> len(self.channels) for side in (height, width)]
        keys = iter(jax.random.split(key, len(self.channels) + len(self.hidden) + 1))
        params = {}
        for k, (before, after) in enumerate(pairwise((channels_in, *self.channels))):
            weight = new_convolution(next(keys), self.kernel, before, after)
            params[f"convolution{k}"] = {"weight": weight, "bias": jax.numpy.zeros(after)}
        flat = math.prod(sides) * (channels_in, *self.channels)[-1]
        for k, fans in enumerate(pairwise((flat, *self.hidden, self.data_set.num_classes))):
            params[f"layer{k}"] = new_dense(next(keys), *fans)
        return params, ()

    def forward(self, params: Any, extra: Any, x: jax.Array, training: bool) -> tuple[jax.Array, Any]:
        x = x.reshape(-1, *self.data_set.shape)
        for k in range(len(self.channels)):
            layer = params[f"convolution{k}"]
            # pooling first: the largest after a ReLU is the ReLU of the largest, on a quarter of the numbers
            x = jax.nn.relu(max_pool(convolution(x, layer["weight"])) + layer["bias"])
        x = x.reshape(len(x), -1)
        for k in range(len(self.hidden) + 1):
            x = dense(params[f"layer{k}"], jax.nn.relu(x) if k else x)
        return x, extra
