"""Ringmaster ASGD: asynchronous SGD that leaves out what is too old."""

from __future__ import annotations

from asyncsim.algorithms.base import algorithm
from asyncsim.algorithms.sgd import ServerSGD
from asyncsim.records import register


@register("ringmaster")
@algorithm
class Ringmaster(ServerSGD):
    """Ringmaster ASGD: a gradient that is less than R updates old makes an update; an older one is dropped.

        x = x - eta g(x of delta updates ago)    if delta < R

    Maranjyan, Tyurin and Richtarik (Ringmaster ASGD, 2025), algorithm 4, and 5 with stops; the steps are recalled. R,
    and whether workers are stopped, are the protocol's: ``ringmaster`` (``max_delay``, ``stop``); the paper takes R =
    max(1, ceil(sigma^2 / eps)), sigma^2 being the variance of gradients and eps the accuracy aimed at. In the paper
    there is no momentum. Server: 1 buffer, one more with momentum.
    """

    protocol = "ringmaster"
