"""Numbers of other people's code, to hold this project's server methods against: makes the JSON files beside it.

None of that code is here. It is unpacked elsewhere, imported from there and run in float64 on a small problem without
noise; only the numbers are kept.

    file            what ran                                       where it is public
    smega2.json     SMEGA2 of smega2.py                            rafi-cohen/SMEGA2 549e7f58 (MIT)
    gap_aware.json  GapAware of pipe/pipeline/gap_aware around     saareliad/FTPipe 986014df (states no licence)
                    torch.optim.SGD
    nesterov.json   torch.optim.SGD(nesterov=True)                 PyTorch (BSD-3-Clause)

Run with Python 3.11.7, torch 2.13.0 (CPU) and numpy 2.4.6, in an environment of its own:

    python -m venv outside && outside/bin/pip install torch numpy
    git clone https://github.com/rafi-cohen/SMEGA2 && git -C SMEGA2 checkout 549e7f58
    git clone https://github.com/saareliad/FTPipe && git -C FTPipe checkout 986014df
    outside/bin/python tests/outside/make_numbers.py --smega2 SMEGA2 --ftpipe FTPipe

A file holds `problem` (loss (x-c)ᵀA(x-c)/2 + Σ w cos x of two tensors, laid end to end row by row) and `cases`. A case
holds the order of the arrivals, the learning rate of every update, `params` (the master after each update) and `sent`
(what the worker that came is sent back, built from the updated master). All workers begin at `start`.

The order in which GapAware and SGD do things at an arrival, with θ the master, θᵢ what the worker was last sent and g
its gradient; every line is elementwise:

    A ← ρA + (1-ρ)v², v as the updates before left it; with no momentum A ← ρA + (1-ρ)g², g of this arrival as it came
    n ← n + 1
    C = η_max (√(A / (1-ρⁿ)) + ε), η_max the largest rate up to and with this update
    p = 1 + |θ-θᵢ| / C
    v ← γv + (g + wd θ) / p, written as g/p + wd θ (1-p)/p, to which SGD adds wd θ
    θ ← θ - ηv
"""

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch

UPDATES = 60
SHAPES = {"a": (2, 2), "b": (2,)}
SOURCES = {
    "smega2": {"repository": "rafi-cohen/SMEGA2", "commit": "549e7f58fbeee861cf897ca657048df15f82755c"},
    "gap_aware": {"repository": "saareliad/FTPipe", "commit": "986014df3bb985595f22139ab355a48ca00dc12f"},
    "nesterov": {"repository": "pytorch/pytorch"},
}


class Problem:
    """A quadratic that is not diagonal, so that no coordinate can be mistaken for another, bent by a cosine."""

    def __init__(self, seed=20):
        rng = np.random.default_rng(seed)
        size = sum(int(np.prod(shape)) for shape in SHAPES.values())
        axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
        matrix = axes @ np.diag(np.geomspace(0.05, 1.5, size)) @ axes.T
        self.numbers = {
            "matrix": (matrix + matrix.T) / 2,
            "centre": rng.normal(size=size),
            "weights": rng.uniform(0.1, 0.4, size=size),
            "start": 2 * rng.normal(size=size),
        }
        self.tensors = {name: torch.tensor(values) for name, values in self.numbers.items()}

    def parameters(self):
        parts = torch.split(self.tensors["start"], [int(np.prod(shape)) for shape in SHAPES.values()])
        return [part.clone().reshape(s).requires_grad_() for part, s in zip(parts, SHAPES.values(), strict=True)]

    def differentiate(self, parameters):
        """Leaves the gradient in the parameters' `grad`."""
        for p in parameters:
            p.grad = None
        x = torch.cat([p.flatten() for p in parameters])
        off = x - self.tensors["centre"]
        (off @ self.tensors["matrix"] @ off / 2 + self.tensors["weights"] @ torch.cos(x)).backward()


def copies(parameters):
    return [p.detach().clone() for p in parameters]


def load(parameters, values):
    # in place: optimisers find their state by the tensor
    with torch.no_grad():
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)


def flat(parameters):
    return torch.cat([p.detach().flatten() for p in parameters]).tolist()


def arrivals(num_workers, name):
    """Irregular, with some workers faster than others, and every worker at least twice. Each case has its own order."""
    rng = np.random.default_rng(list(name.encode()))
    shares = 1 / np.arange(2, num_workers + 2)
    while True:
        order = rng.choice(num_workers, size=UPDATES, p=shares / shares.sum())
        if np.bincount(order, minlength=num_workers).min() >= 2:
            return order.tolist()


def constant(rate):
    return [rate] * UPDATES


def changing(rate):
    """Rises over the first 20 updates, drops to a tenth at update 40."""
    return [rate * min(1, (k + 1) / 20) / (10 if k >= 40 else 1) for k in range(UPDATES)]


def serve(problem, case, parameters, update):
    """Runs a server: `update(k, stale)` takes the gradient in the parameters and returns what the worker is sent."""
    held = [copies(parameters) for _ in range(case["num_workers"])]
    case |= {"params": [], "sent": []}
    for k, worker in enumerate(case["arrivals"]):
        master = copies(parameters)
        load(parameters, held[worker])
        problem.differentiate(parameters)
        load(parameters, master)
        held[worker] = update(k, held[worker])
        case["params"].append(flat(parameters))
        case["sent"].append(flat(held[worker]))
    return case


def smega2(problem, folder):
    sys.path.insert(0, str(folder))
    from smega2 import SMEGA2

    def run(name, num_workers, advanced, rates, weight_decay, cycle=None, momentum=0.9):
        case = {
            "name": name,
            "num_workers": num_workers,
            "arrivals": arrivals(num_workers, name),
            "learning_rates": rates,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "momentum_cycle": cycle or num_workers,
            "advanced": advanced,
        }
        parameters = problem.parameters()
        optimiser = SMEGA2(parameters, rates[0], case["momentum_cycle"], advanced, momentum, 0, weight_decay)

        def update(k, stale):
            # the rate is set before the step and the estimate made with the same rate, as its trainer does
            optimiser.param_groups[0]["lr"] = rates[k]
            optimiser.step()
            return optimiser.estimate()

        return serve(problem, case, parameters, update)

    rates = {1: 0.1, 2: 0.1, 4: 0.06, 8: 0.04}
    for n, rate in rates.items():
        # a cycle of one is always complete, and both estimates are the same
        for kind in ("advanced",) if n == 1 else ("advanced", "naive"):
            for wd in (0.0, 0.01):
                yield run(f"{n} workers, {kind}, decay {wd}", n, kind == "advanced", constant(rate), wd)
    for kind, n in ("advanced", 4), ("naive", 8):
        yield run(f"{n} workers, {kind}, changing rate", n, kind == "advanced", changing(rates[n]), 0.01)
    yield run("4 workers, advanced, cycle of 3", 4, True, constant(rates[4]), 0.01, cycle=3)


def gap_aware(problem, folder):
    # its own package alone: the one around it needs MPI and more
    sys.path.insert(0, str(Path(folder, "pipe", "pipeline")))
    from gap_aware import GapAware

    def run(name, num_workers, rates, momentum, weight_decay, rho=0.999, epsilon=1e-8):
        case = {
            "name": name,
            "num_workers": num_workers,
            "arrivals": arrivals(num_workers, name),
            "learning_rates": rates,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "rho": rho,
            "epsilon": epsilon,
        }
        parameters = problem.parameters()
        optimiser = torch.optim.SGD(parameters, lr=1.0, momentum=momentum, weight_decay=weight_decay)
        # scheduler first, as FTPipe has it: the largest rate then begins at the first update's
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda k: rates[min(k, UPDATES - 1)])
        penalty = GapAware(optimiser, big_gamma=rho, epsilon=epsilon)
        with contextlib.redirect_stdout(io.StringIO()):
            penalty.patch_scheduler(scheduler)

        def update(k, stale):
            assert optimiser.param_groups[0]["lr"] == rates[k]
            assert optimiser.param_groups[0]["max_lr"] == max(rates[: k + 1])
            penalty.update_running_stats()
            penalty.apply_on_stashed([stale])
            optimiser.step()
            scheduler.step()
            return copies(parameters)

        return serve(problem, case, parameters, update)

    rates = {0.9: 0.05, 0.0: 0.3}
    for n in 1, 4, 8:
        for momentum in 0.9, 0.0:
            for wd in 0.0, 0.01:
                name = f"{n} workers, momentum {momentum}, decay {wd}"
                yield run(name, n, constant(rates[momentum]), momentum, wd)
    for n, momentum in (4, 0.9), (8, 0.9), (4, 0.0):
        yield run(f"{n} workers, momentum {momentum}, changing rate", n, changing(rates[momentum]), momentum, 0.01)
    yield run("4 workers, momentum 0.9, rho 0.9", 4, constant(rates[0.9]), 0.9, 0.01, rho=0.9)


def nesterov(problem):
    for wd in 0.0, 0.01:
        case = {
            "name": f"decay {wd}",
            "num_workers": 1,
            "arrivals": [0] * UPDATES,
            "learning_rates": constant(0.1),
            "momentum": 0.9,
            "weight_decay": wd,
            "params": [],
        }
        parameters = problem.parameters()
        optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=wd, nesterov=True)
        for _ in range(UPDATES):
            problem.differentiate(parameters)
            optimiser.step()
            case["params"].append(flat(parameters))
        yield case


def text(value):
    """JSON with a row of numbers a line: every digit, and differences that can be read."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(k)}: {text(v)}" for k, v in value.items()) + "\n}"
    if isinstance(value, list) and isinstance(value[0], dict | list):
        return "[\n" + ",\n".join(text(v) for v in value) + "\n]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def main():
    parser = argparse.ArgumentParser(description="Makes the numbers of other people's code again.")
    parser.add_argument("--smega2", required=True, type=Path, help="folder of rafi-cohen/SMEGA2")
    parser.add_argument("--ftpipe", required=True, type=Path, help="folder of saareliad/FTPipe")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the JSON files")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    problem = Problem()
    written = {"shapes": {name: list(shape) for name, shape in SHAPES.items()}}
    written |= {name: values.tolist() for name, values in problem.numbers.items()}
    made = {
        "smega2": smega2(problem, arguments.smega2),
        "gap_aware": gap_aware(problem, arguments.ftpipe),
        "nesterov": nesterov(problem),
    }
    for name, cases in made.items():
        versions = {"torch": torch.__version__, "numpy": np.__version__}
        content = {"source": SOURCES[name] | versions, "problem": written, "cases": list(cases)}
        (arguments.out / f"{name}.json").write_text(text(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
