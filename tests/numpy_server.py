"""Server methods once more, in plain NumPy: the papers' rules on an order of arrivals, with nothing of asyncsim in it.

``train(rule, arrivals, gradient, start, rates)`` keeps what each worker was last sent; a rule is a function of what it
keeps (``s``, a dict), the arriving worker, its gradient, what that worker was sent, how stale it is, and the learning
rate, and returns what the worker is sent back.
"""

import numpy as np


def train(rule, arrivals, gradient, start, rates, num_workers, **hyper):
    """(updates, d) parameters after each update, (updates, d) what was sent back, and where each gradient was taken."""
    s = {"x": np.array(start, float), "N": num_workers, **hyper}
    sent, read_at, count = dict.fromkeys(range(num_workers), s["x"]), dict.fromkeys(range(num_workers), 0), {}
    path, replies, points = [], [], []
    for k, (i, rate) in enumerate(zip(arrivals, rates, strict=True)):
        points.append(sent[i])
        g = gradient(sent[i], i, count.get(i, 0))
        count[i] = count.get(i, 0) + 1
        reply = rule(s, i, g, sent[i], k - read_at[i], rate)
        sent[i], read_at[i] = reply, k + 1
        path.append(s["x"])
        replies.append(reply)
    return np.array(path), np.array(replies), np.array(points)


def heavy_ball(s, d, rate):
    s["v"] = s["gamma"] * s.get("v", 0) + d
    s["x"] = s["x"] - rate * s["v"]


def asgd(s, i, g, sent, tau, rate):
    heavy_ball(s, g + s["wd"] * s["x"], rate)
    return s["x"]


def nag_asgd(s, i, g, sent, tau, rate):
    heavy_ball(s, g + s["wd"] * s["x"], rate)
    return s["x"] - rate * s["gamma"] * s["v"]


def own_momentum(s, i, d, rate):
    v = s.setdefault("V", {j: np.zeros_like(s["x"]) for j in range(s["N"])})
    v[i] = s["gamma"] * v[i] + d
    s["x"] = s["x"] - rate * v[i]


def multi_asgd(s, i, g, sent, tau, rate):
    own_momentum(s, i, g + s["wd"] * s["x"], rate)
    return s["x"]


def dana_zero(s, i, g, sent, tau, rate):
    own_momentum(s, i, g + s["wd"] * s["x"], rate)
    return s["x"] - rate * s["gamma"] * sum(s["V"].values())


def dana_slim(s, i, g, sent, tau, rate):
    v = s.setdefault("V", {j: np.zeros_like(s["x"]) for j in range(s["N"])})
    d = g + s["wd"] * sent
    v[i] = s["gamma"] * v[i] + d
    s["x"] = s["x"] - rate * (s["gamma"] * v[i] + d)
    return s["x"]


def compensated(s, g, sent):
    d, away = g + s["wd"] * s["x"], s["x"] - sent
    if s["form"] == "constant":
        return d + s["lam"] * d * d * away
    if s["form"] == "absolute":
        return d + s["lam"] * np.abs(d) * away
    s["MS"] = s["m"] * s.get("MS", 0) + (1 - s["m"]) * d * d
    return d + s["lam"] / np.sqrt(s["MS"] + 1e-7) * d * d * away


def dc_asgd(s, i, g, sent, tau, rate):
    heavy_ball(s, compensated(s, g, sent), rate)
    return s["x"]


def dana_dc(s, i, g, sent, tau, rate):
    own_momentum(s, i, compensated(s, g, sent), rate)
    return s["x"] - rate * s["gamma"] * sum(s["V"].values())


def penalised(s, g, sent, rate):
    """The layers are the first two and the other coordinates."""
    d, away = g + s["wd"] * s["x"], np.abs(s["x"] - sent)
    s["n"] = s.get("n", 0) + 1
    s["eta"] = max(s.get("eta", 0), rate)
    rho, before = s["rho"], s.get("A", np.zeros_like(s["x"]))
    last = g if s["gamma"] is None else s.get("step", np.zeros_like(s["x"]))
    s["A"] = rho * before + (1 - rho) * last * last
    a = s["A"] / (1 - rho ** s["n"])
    layers = {"parameter": [[k] for k in range(len(d))], "layer": [[0, 1], [2, 3, 4]], "global": [[0, 1, 2, 3, 4]]}
    out = np.empty_like(d)
    for part in layers[s["granularity"]]:
        usual = s["eta"] * (np.sqrt(a[part].mean()) + s["eps"])
        out[part] = d[part] / (1 + np.sqrt((away[part] ** 2).mean()) / usual)
    return out


def gap_aware(s, i, g, sent, tau, rate):
    d = penalised(s, g, sent, rate)
    if s["gamma"] is None:
        s["x"] = s["x"] - rate * d
    else:
        heavy_ball(s, d, rate)
        s["step"] = s["v"]
    return s["x"]


def dana_ga(s, i, g, sent, tau, rate):
    own_momentum(s, i, penalised(s, g, sent, rate), rate)
    s["step"] = s["V"][i]
    return s["x"] - rate * s["gamma"] * sum(s["V"].values())


def staleness_aware(s, i, g, sent, tau, rate):
    heavy_ball(s, (g + s["wd"] * s["x"]) / (tau if tau > 0 else 1), rate)
    return s["x"]


def inverse_delay(s, i, g, sent, tau, rate):
    heavy_ball(s, g + s["wd"] * s["x"], rate / max(1, s["delay"]))
    return s["x"]


def delay_adaptive(s, i, g, sent, tau, rate):
    heavy_ball(s, (g + s["wd"] * s["x"]) * s["N"] / max(s["N"], tau + 1), rate)
    return s["x"]


def smega2(s, i, g, sent, tau, rate):
    d, n, gamma = g + s["wd"] * s["x"], s["cycle"], s["gamma"]
    m, total = s.get("m", 0), s.get("G", 0) + d
    s["s"] = (s.get("s", 0) + 1) % n
    s["x"] = s["x"] - rate * (d + gamma * m)
    if s["s"] == 0:
        m, total = gamma * m + total / n, 0 * d
    s["m"], s["G"] = m, total
    if s["advanced"]:
        return s["x"] - rate * gamma * ((n + s["s"] * (gamma - 1)) * m + s["s"] / n * total)
    return s["x"] - rate * gamma * n * m
