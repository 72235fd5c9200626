"""Data sets: files that are found, downloaded, checked; labels of teachers; windows of a text."""

import functools
import gzip
import hashlib
import http.server
import sys
import threading

import numpy as np
import pytest

from asyncsim.data import FashionMNIST, SparseTeacher, Teacher, Text
from asyncsim.data import fashion_mnist as module
from asyncsim.data.teachers import distinct
from asyncsim.errors import InputError
from asyncsim.problems import CharTransformer, Logistic
from asyncsim.records import build, table

PARTS = {"train": 30, "t10k": 12}


def idx(values):
    """The bytes of an IDX file."""
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return head + values.astype(np.uint8).tobytes()


@pytest.fixture
def published(monkeypatch, tmp_path):
    """Small files with the names of the real ones, in a folder; nothing else is there."""
    rng, folder, files = np.random.default_rng(0), tmp_path / "published", {}
    folder.mkdir()
    for part, n in PARTS.items():
        images, labels = rng.integers(256, size=(n, 28, 28)), rng.integers(10, size=n)
        for name, values in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = idx(values)
            packed = gzip.compress(content, mtime=0)
            (folder / f"{name}.gz").write_bytes(packed)
            files[name] = module.Source(*(hashlib.sha256(b).hexdigest() for b in (content, packed)))
    monkeypatch.setattr(module, "FILES", files)
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "no-such-folder")
    monkeypatch.setenv("ASYNCSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ASYNCSIM_FASHION_MNIST_URL", "http://127.0.0.1:9/")  # nobody listens there
    module._loaded.cache_clear()
    yield folder
    module._loaded.cache_clear()


@pytest.fixture
def server(published, monkeypatch):
    """The files on a server of this machine; also what was asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=published)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("ASYNCSIM_FASHION_MNIST_URL", f"http://127.0.0.1:{server.server_port}")
        yield asked
        server.shutdown()
        thread.join()


def same(a, b):
    return all(np.array_equal(x[k], y[k]) for x, y in zip(a, b, strict=True) for k in ("x", "y"))


def test_idx_files_plain_or_compressed_from_a_folder(published, tmp_path):
    data = FashionMNIST(folder=str(published)).load()
    raw = gzip.decompress((published / "train-images-idx3-ubyte.gz").read_bytes())
    assert data.train["x"].dtype == np.float32
    assert np.array_equal(data.train["x"], (np.frombuffer(raw[16:], np.uint8).reshape(30, 784) / np.float32(255)))
    assert data.test["y"].shape == (12,)
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in published.glob("*.gz"):
        (plain / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
    assert same(FashionMNIST(folder=str(plain)).load(), data)
    few = FashionMNIST(folder=str(plain), train=7, test=3).load()
    assert (len(few.train["x"]), len(few.test["y"])) == (7, 3)
    assert np.array_equal(few.train["x"], data.train["x"][:7])


def test_other_content_and_missing_files_are_refused(published, tmp_path):
    (published / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(12))))
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.gz: is another file than the authors published"):
        FashionMNIST(folder=str(published)).load()
    (published / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.gz: cannot be read"):
        FashionMNIST(folder=str(published)).load()
    with pytest.raises(InputError, match=r"folder: train-images-idx3-ubyte \(or .*gz\) is not in /nowhere"):
        FashionMNIST(folder="/nowhere").load()


def test_downloads_once_into_the_cache(published, server, tmp_path):
    data = FashionMNIST().load()
    assert same(data, FashionMNIST(folder=str(published)).load())
    assert sorted(server) == sorted(f"/{file.name}" for file in published.iterdir())
    assert len(list((tmp_path / "cache" / "fashion-mnist").iterdir())) == 4
    module._loaded.cache_clear()
    assert same(FashionMNIST().load(), data)
    assert len(server) == 4


def test_a_download_with_a_wrong_hash_leaves_nothing(published, server, tmp_path):
    (published / "train-images-idx3-ubyte.gz").write_bytes(b"something else")
    with pytest.raises(InputError, match=r"could not be downloaded .*which has another file .*apt-get install dataset"):
        FashionMNIST().load()
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_without_a_server_the_message_says_how_to_get_the_files(published, server, monkeypatch):
    how = r"apt-get install dataset-fashion-mnist, or pip install 'asyncsim\[data\]' .*folder"
    (published / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(InputError, match=rf"fashion_mnist: train-images-idx3-ubyte.gz could not be .*404.*{how}"):
        FashionMNIST().load()
    monkeypatch.setenv("ASYNCSIM_FASHION_MNIST_URL", "http://127.0.0.1:9/")
    with pytest.raises(InputError, match=rf"could not be downloaded from http://127.0.0.1:9/ .*{how}"):
        FashionMNIST().load()
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=rf"the files of Fashion-MNIST are not here: {how}"):
        FashionMNIST().load()


@pytest.mark.skipif(not module.DEBIAN.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_fashion_mnist_is_what_it_says():
    data = FashionMNIST(folder=str(module.DEBIAN)).load()
    assert data.train["x"].shape == (60_000, 784)
    assert data.test["x"].shape == (10_000, 784)
    assert (data.train["x"].min(), data.train["x"].max()) == (0, 1)
    assert np.bincount(data.train["y"]).tolist() == [6000] * 10
    assert np.bincount(data.test["y"]).tolist() == [1000] * 10
    assert data.train["y"][:5].tolist() == [9, 0, 0, 3, 0]


def test_a_linear_teacher_can_be_read_off_its_samples():
    spec = Teacher(features=5, classes=3, train=20_000, test=100)
    data = spec.load()
    x, y = data.train["x"].astype(float), data.train["y"]
    assert x.mean(0) == pytest.approx(np.zeros(5), abs=0.05)
    assert np.cov(x.T) == pytest.approx(np.eye(5), abs=0.06)
    assert spec.load() is data
    assert not np.array_equal(Teacher(features=5, classes=3, train=20_000, test=100, seed=1).load().train["x"], x)
    # labels are linear in x: a perceptron on them ends without mistakes
    weights = np.zeros((5, 3))
    for _ in range(300):
        guess = (x[:500] @ weights).argmax(1)
        for k in np.flatnonzero(guess != y[:500]):
            weights[:, y[k]] += x[k]
            weights[:, guess[k]] -= x[k]
    assert np.mean((x[:500] @ weights).argmax(1) == y[:500]) > 0.99


def test_noise_is_the_probability_of_a_random_label():
    clean, noisy, random = (Teacher(classes=4, noise=p).load().train["y"] for p in (0.0, 0.3, 1.0))
    assert np.mean(clean != noisy) == pytest.approx(0.3 * 3 / 4, abs=0.015)
    assert np.mean(clean != random) == pytest.approx(3 / 4, abs=0.015)
    deep = Teacher(hidden=(16,), classes=4)
    assert np.bincount(deep.load().train["y"], minlength=4).min() > 500


def test_sparse_samples_have_distinct_features_all_equally_likely():
    index = distinct(np.random.default_rng(0), 60_000, 3, 5)
    assert all(len(set(row)) == 3 for row in np.sort(index, 1)[:1000].tolist())
    _, counts = np.unique(np.sort(index, 1), axis=0, return_counts=True)
    assert len(counts) == 10
    assert ((counts - 6000) ** 2 / 6000).sum() < 27.9  # chi square, 9 degrees of freedom
    assert np.sort(distinct(np.random.default_rng(0), 50, 7, 7), 1).tolist() == [list(range(7))] * 50
    data = SparseTeacher(features=40, nonzeros=6, train=500, test=20).load()
    assert data.train["x"]["index"].shape == data.train["x"]["value"].shape == (500, 6)
    assert data.train["x"]["index"].max() < 40


def test_what_no_teacher_can_give_is_refused():
    with pytest.raises(InputError, match=r"nonzeros: a sample of 5 features cannot have 6 of them"):
        SparseTeacher(features=5, nonzeros=6)
    with pytest.raises(InputError, match=r"features: 1.2e[+]10 numbers are too many to generate"):
        Teacher(features=1_000_000)
    with pytest.raises(InputError, match=r"features: 4e[+]12 numbers are too many to generate"):
        SparseTeacher(features=2_000_000_000_000)


def test_windows_of_a_text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("abcdefghij\r\nßxyz".encode() * 10)
    text = Text(file=str(file), context=4, test_share=0.25)
    whole = "abcdefghij\r\nßxyz" * 10
    assert text.vocabulary == "".join(sorted(set(whole)))
    train, test = text.load()

    def spelled(part):
        return "".join(text.vocabulary[k] for k in part.ravel())

    assert spelled(train["x"]) == whole[: len(train["x"]) * 4]
    assert spelled(train["y"]) == whole[1 : len(train["y"]) * 4 + 1]
    assert spelled(test["x"]) == whole[120 : 120 + len(test["x"]) * 4]
    assert (train["x"].shape, test["x"].shape) == ((29, 4), (9, 4))
    file.write_text("another text " * 20)
    assert "ß" not in Text(file=str(file), context=4).vocabulary  # read anew


def test_the_text_is_known_by_its_hash(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be " * 20)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    problem = build(CharTransformer, {"text": {"file": str(file), "context": 8}})
    assert table(problem)["text"] == {"file": str(file), "context": 8, "test_share": 0.1, "sha256": sha256}
    assert build(CharTransformer, {"text": {"file": str(file), "context": 8, "sha256": sha256}}).num_samples == 42
    file.write_text("that is the question " * 20)
    with pytest.raises(InputError, match=rf"sha256: that of .*text.txt is [0-9a-f]+, not {sha256}"):
        Text(file=str(file), sha256=sha256).load()
    with pytest.raises(InputError, match=r"sha256: that of Python's help texts \(another release has others\) is"):
        table(Text(sha256=sha256))


def test_pythons_own_text():
    text = Text()
    assert len(text.vocabulary) > 90
    train, test = text.load()
    assert 0.08 < len(test["x"]) / (len(train["x"]) + len(test["x"])) < 0.12
    assert len(text.resolved().sha256) == 64
    assert text.resolved().resolved() == text.resolved()


def test_texts_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"file: /nowhere/text.txt cannot be read: No such file"):
        Text(file="/nowhere/text.txt").load()
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"file: .* is no text in UTF-8: invalid start byte at byte 0"):
        Text(file=str(tmp_path / "bytes")).load()
    (tmp_path / "short").write_text("short")
    with pytest.raises(InputError, match="context: a text of 5 characters is too short to be cut into windows of 64"):
        Text(file=str(tmp_path / "short")).load()


def test_labels_are_those_of_the_training_samples():
    assert np.array_equal(Logistic().labels(), Logistic().data().train["y"])
    with pytest.raises(InputError, match="the samples of char_transformer have no labels"):
        CharTransformer().labels()
