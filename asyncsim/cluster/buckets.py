"""In which pieces a gradient is sent, and when each is ready: how computing and communication overlap."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from asyncsim.errors import InputError
from asyncsim.records import Family, Fraction, Probability, checked, register
from asyncsim.workload import Bytes

MIB = 2**20
MANY = 100_000  # pieces of one gradient


class Piece(NamedTuple):
    """A part of a gradient that is sent at once."""

    ready: float  # when, as a share of the step's time
    share: float  # of the model's bytes
    begin: float  # where its parameters begin, as a share of the model's bytes in forward order


class Buckets(Family):
    """How a gradient is cut into pieces. Tensors come in forward order; their gradients in reverse.

    The forward pass takes ``forward`` of a step; in the backward pass gradients get ready in proportion to their bytes.
    ``overlap``: how much of that is used, from 1, each piece is ready when it is computed, down to 0, all at the end of
    the step. A worker sends its pieces one after another.

    Parameters are whole all the same: a gradient counts as arrived when all of it has, and the server answers then.
    """

    family = "way to cut gradients into buckets"
    forward: float = 0.0
    fuses = False  # what is ready is sent in one message, up to bucket_bytes
    by_priority = False  # what the next forward pass needs first goes first, both ways
    cycle = 0.0  # seconds: where it fuses, what is ready is looked at only so often
    bucket_bytes = 0  # where it fuses, of one message at most

    @abstractmethod
    def pieces(self, tensor_bytes: Sequence[int]) -> list[Piece] | None:
        """The pieces of a gradient; None: the whole, sent after the step."""

    def check(self, kind: str) -> None:
        """Raise InputError if pieces cannot be sent in this way with a ``server``, or between ``peers``."""
        if kind == "peers" and (self.fuses or self.by_priority):
            what = f"{self.name} sends gradients to a server; peers exchange by whole, tensors or pytorch_ddp"
            raise InputError(what, "name")


@register("whole")
@checked
class Whole(Buckets):
    """The whole gradient is one message, sent when the step is done: nothing overlaps."""

    def pieces(self, tensor_bytes: Sequence[int]) -> list[Piece] | None:
        return None


class _InPieces(Buckets):
    """What all the others have in common."""

    overlap: Probability
    forward: Fraction

    @abstractmethod
    def cut(self, tensor_bytes: Sequence[int]) -> Iterable[list[tuple[int, int]]]:
        """The pieces in the order in which they get ready, each as ranges of the model's bytes in forward order."""

    def pieces(self, tensor_bytes: Sequence[int]) -> list[Piece] | None:
        if not tensor_bytes:
            raise InputError("needs the sizes of the tensors: a workload with tensor_bytes")
        whole = sum(tensor_bytes)
        out: list[Piece] = []
        for ranges in self.cut(tensor_bytes):
            if len(out) == MANY:
                raise InputError(f"cuts a gradient of {whole} bytes into more than {MANY} pieces, which is the limit")
            begin = min(first for first, _ in ranges)
            computed = self.forward + (1 - self.forward) * (1 - begin / whole)  # backwards, from the end to begin
            ready = 1 - self.overlap * (1 - computed)
            out.append(Piece(ready, sum(last - first for first, last in ranges) / whole, begin / whole))
        return out


def _ranges(tensor_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Where each tensor begins and ends, in bytes, last tensor first."""
    out, at = [], 0
    for size in tensor_bytes:
        out.append((at, at + size))
        at += size
    return out[::-1]


def _filled(tensor_bytes: Sequence[int], first_limit: int, then: int) -> list[list[tuple[int, int]]]:
    """Tensors gathered, last one first, until so many bytes are reached, in the first bucket and in later ones."""
    buckets: list[list[tuple[int, int]]] = []
    open_, held, limit = list[tuple[int, int]](), 0, first_limit
    for first, last in _ranges(tensor_bytes):
        open_.append((first, last))
        held += last - first
        if held >= limit:
            buckets.append(open_)
            open_, held, limit = [], 0, then
    return [*buckets, open_] if open_ else buckets


@register("pytorch_ddp")
@checked
class PyTorchDDP(_InPieces):
    """Buckets as PyTorch's DistributedDataParallel makes them: tensors in reverse order, until one is full.

    A bucket is closed by the tensor that reaches ``bucket_bytes`` (bucket_cap_mb = 25; the first, so that something is
    sent early, 1 MiB), and buckets are sent in order (Li et al., PyTorch Distributed, VLDB 2020). ``forward`` of 1/3: a
    backward pass takes about twice a forward pass.
    """

    bucket_bytes: Bytes = 25 * MIB
    first_bucket_bytes: Bytes = MIB
    overlap: Probability = 1.0
    forward: Fraction = 1 / 3

    def cut(self, tensor_bytes: Sequence[int]) -> list[list[tuple[int, int]]]:
        return _filled(tensor_bytes, self.first_bucket_bytes, self.bucket_bytes)


@register("tensors")
@checked
class Tensors(_InPieces):
    """Each tensor by itself, as its gradient gets ready; or in buckets of at least ``bucket_bytes``.

    So the released codes of eager-SGD and WAGMA-SGD exchange models: one operation a tensor, each of which waits for
    the one before.
    """

    bucket_bytes: Bytes = 1
    overlap: Probability = 1.0
    forward: Fraction = 1 / 3

    def cut(self, tensor_bytes: Sequence[int]) -> list[list[tuple[int, int]]]:
        return _filled(tensor_bytes, self.bucket_bytes, self.bucket_bytes)


@register("horovod")
@checked
class Horovod(_InPieces):
    """Tensor fusion as in Horovod: every ``cycle`` seconds all tensors that are ready go out in one message.

    It holds at most ``bucket_bytes`` (the fusion threshold: 128 MiB, and a cycle of 1 ms, since version 0.21; 64 MiB
    and 5 ms before); while one is on its way, the next ones gather (Sergeev and Del Balso 2018).
    """

    bucket_bytes: Bytes = 128 * MIB
    cycle: Annotated[float, Meta(ge=1e-9, le=1e9)] = 1e-3
    overlap: Probability = 1.0
    forward: Fraction = 1 / 3
    fuses = True

    def cut(self, tensor_bytes: Sequence[int]) -> list[list[tuple[int, int]]]:
        return [[span] for span in _ranges(tensor_bytes)]


@register("p3")
@checked
class P3(_InPieces):
    """Priority-based parameter propagation: small slices, and those of the first layers go first.

    Tensors are cut into slices of ``slice_bytes`` (40,000 parameters of 4 bytes, as in the authors' code and MXNet). Of
    the slices that wait, the one that the forward pass needs first is sent next, to the server and back, and the next
    step begins when the first is there and goes on as the others come (Jayarajan et al., MLSys 2019). The server
    answers when the whole gradient has arrived, not slice by slice, so what is gained on the way to the server is less
    than in the paper.
    """

    slice_bytes: Bytes = 160_000
    overlap: Probability = 1.0
    forward: Fraction = 1 / 3
    by_priority = True

    def cut(self, tensor_bytes: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
        for first, last in _ranges(tensor_bytes):
            begins = range(first, last, self.slice_bytes)
            yield from ([(at, min(at + self.slice_bytes, last))] for at in reversed(begins))
