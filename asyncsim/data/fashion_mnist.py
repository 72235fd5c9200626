"""Fashion-MNIST, from wherever its files are."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from asyncsim.data.base import Data
from asyncsim.data.data_sets import DataSet
from asyncsim.errors import InputError
from asyncsim.files import cache_folder
from asyncsim.records import checked, register


class Source(NamedTuple):
    """One of the files: SHA-256 of its content, which says that it is the right one, and of the .gz as published."""

    content: str
    compressed: str


FILES = {
    "train-images-idx3-ubyte": Source(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "train-labels-idx1-ubyte": Source(
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "t10k-images-idx3-ubyte": Source(
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "t10k-labels-idx1-ubyte": Source(
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts them
PUBLISHED = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # the authors' own; the hashes guard it
HOW = (
    "apt-get install dataset-fashion-mnist, or pip install 'asyncsim[data]' to have it downloaded once, or say where "
    "the four files are: folder"
)


@register("fashion_mnist")
@checked
class FashionMNIST(DataSet):
    """70,000 pictures of clothes, 28x28 pixels, 10 classes: 60,000 to train on and 10,000 to test; pixels 0 to 1.

    H. Xiao, K. Rasul and R. Vollgraf, arXiv 1708.07747 (2017); MIT licence. ``train``, ``test``: only the first n.

    The four IDX files, plain or .gz, are read from ``folder``; without one, from where Debian's package
    dataset-fashion-mnist has them, or from asyncsim's cache, into which they are else downloaded once. That needs pooch
    (``pip install 'asyncsim[data]'``); the environment variable ASYNCSIM_FASHION_MNIST_URL names another place to
    download from, ASYNCSIM_CACHE another cache. The content is checked by SHA-256: all sources give the same numbers.
    """

    folder: str | None = None
    train: Annotated[int, Meta(ge=1, le=60_000)] | None = None
    test: Annotated[int, Meta(ge=1, le=10_000)] | None = None

    def load(self) -> Data:
        return _loaded(self)

    @property
    def shape(self) -> tuple[int, ...]:
        return 28, 28, 1

    @property
    def num_classes(self) -> int:
        return 10


@functools.lru_cache(maxsize=2)
def _loaded(spec: FashionMNIST) -> Data:
    def part(name: str, first: int | None) -> dict[str, np.ndarray]:
        images, labels = (_read(spec.folder, f"{name}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
        x = images[:first].reshape(len(images[:first]), -1).astype(np.float32) / 255
        return {"x": x, "y": labels[:first].astype(np.int32)}

    return Data(part("train", spec.train), part("t10k", spec.test))


def _read(folder: str | None, name: str) -> np.ndarray:
    """The numbers of one of the files, checked."""
    file = _found(folder, name)
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", str(file)) from None
    if hashlib.sha256(content).hexdigest() != FILES[name].content:
        raise InputError("is another file than the authors published, or a damaged one", str(file))
    # IDX: two bytes 0, the type (8: unsigned bytes), the number of axes, their lengths in four bytes each
    axes = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(axes)).reshape(axes)


def _found(folder: str | None, name: str) -> Path:
    cache = cache_folder() / "fashion-mnist"
    places = (DEBIAN, cache) if folder is None else (Path(folder),)
    for place in places:
        for file in (place / name, place / f"{name}.gz"):
            if file.is_file():
                return file
    if folder is not None:
        raise InputError(f"{name} (or {name}.gz) is not in {folder}", "folder")
    return _downloaded(cache, name)


def _downloaded(cache: Path, name: str) -> Path:
    try:
        import pooch
    except ImportError:
        raise InputError(f"the files of Fashion-MNIST are not here: {HOW}", "fashion_mnist") from None
    pooch.get_logger().setLevel("ERROR")  # what goes wrong is said below, in one line
    url = os.environ.get("ASYNCSIM_FASHION_MNIST_URL") or PUBLISHED
    known = {f"{name}.gz": f"sha256:{FILES[name].compressed}"}
    try:
        return Path(pooch.create(cache, url.rstrip("/") + "/", registry=known).fetch(f"{name}.gz"))
    except Exception as error:  # of the network, of the server, of the disk: each has exceptions of its own
        wrong = isinstance(error, ValueError) and "hash" in str(error)
        reason = "which has another file than the authors published" if wrong else str(error)
        what = f"{name}.gz could not be downloaded from {url} ({reason})"
        raise InputError(f"{what}; {HOW}", "fashion_mnist") from None
