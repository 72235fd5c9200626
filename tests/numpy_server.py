"""Server methods once more, in plain NumPy: the papers' rules, with nothing of asyncsim in them.

A ``Server`` is ASGD; its subclasses change what they do otherwise. ``walk`` takes it through a list of events: ("read",
worker), ("drop", worker), ("cancel", worker), ("reset", worker), ("apply", worker, weight, whether it closes the
update).
"""

import numpy as np


class Server:
    """v = gamma v + d; x = x - eta v (gamma None: x - eta d)."""

    def __init__(self, x, num_workers, gamma=0.9, wd=0.0, at="server", **hyper):
        self.x, self.n, self.gamma, self.wd, self.at, self.hyper = np.array(x, float), num_workers, gamma, wd, at, hyper
        self.total, self.rate = None, 0.0
        self.v = 0 * self.x  # the momentum for all
        self.each = [0 * self.x for _ in range(num_workers)]  # that of each
        self.square, self.updates, self.largest = 0 * self.x, 0, 0.0  # what corrections remember

    def momentum(self, i):
        """What a gradient of worker i meets."""
        return None if self.gamma is None else self.v

    def outgoing(self, i, g, sent):
        return g + self.wd * sent if self.at == "worker" else g

    def receive(self, i, u, sent, tau, rate):
        """What goes into the update: a direction, what is noted, the change of the sum of momenta."""
        d = u + self.wd * self.x if self.at == "server" else u
        d, noted = self.correct(u, d, sent, tau, rate)
        return np.array([d, noted, 0 * d])

    def correct(self, u, d, sent, tau, rate):
        return d, 0 * d

    def close(self, rate):
        (d, noted, change), self.total, self.rate = self.total, None, rate
        step = self.step(d, change)
        self.x = self.x - rate * step
        self.remember(noted, step)
        self.updates, self.largest = self.updates + 1, max(self.largest, rate)

    def step(self, d, change):
        if self.gamma is None:
            return d
        self.v = self.gamma * self.v + d
        return self.v

    def remember(self, noted, step):
        pass

    def view(self):
        return self.x

    def reset(self, i):
        pass


class NAG(Server):
    def view(self):
        return self.x - self.rate * self.gamma * self.v


class Multi(Server):
    def momentum(self, i):
        return self.each[i]

    def receive(self, i, u, sent, tau, rate):
        d, noted, _ = super().receive(i, u, sent, tau, rate)
        before, self.each[i] = self.each[i], self.gamma * self.each[i] + d
        return np.array([self.each[i], noted, self.each[i] - before])

    def step(self, d, change):
        return d


class DanaZero(Multi):
    ahead = 0.0

    def step(self, d, change):
        self.ahead = self.ahead + change
        return d

    def view(self):
        return self.x - self.rate * self.gamma * self.ahead


class DanaSlim(Server):
    def momentum(self, i):
        return self.each[i]

    def outgoing(self, i, g, sent):
        d = g + self.wd * sent
        self.each[i] = self.gamma * self.each[i] + d
        return self.gamma * self.each[i] + d

    def step(self, d, change):
        return d

    def reset(self, i):
        self.each[i] = 0 * self.x


class Compensating:
    def correct(self, u, d, sent, tau, rate):
        form, strength, away = self.hyper["form"], self.hyper["strength"], self.x - sent
        if form == "constant":
            return d + strength * d * d * away, 0 * d
        if form == "absolute":
            return d + strength * np.abs(d) * away, 0 * d
        m = self.hyper["m"]
        mean = m * self.square + (1 - m) * d * d
        return d + strength / np.sqrt(mean + 1e-7) * d * d * away, d * d

    def remember(self, noted, step):
        m = self.hyper["m"]
        self.square = m * self.square + (1 - m) * noted


class Penalising:
    def correct(self, u, d, sent, tau, rate):
        rho, away, out = self.hyper["rho"], np.abs(self.x - sent), np.empty_like(d)
        square = self.square if self.gamma else rho * self.square + (1 - rho) * u * u
        square = square / (1 - rho ** (self.updates + 1))
        for part in self.hyper["parts"]:
            gap, usual = np.sqrt((away[part] ** 2).mean()), np.sqrt(square[part].mean())
            out[part] = d[part] / (1 + (gap / (max(self.largest, rate) * (usual + 1e-8)) if gap > 0 else 0))
        return out, u * u

    def remember(self, noted, step):
        rho = self.hyper["rho"]
        self.square = rho * self.square + (1 - rho) * (step * step if self.gamma else noted)


class DC(Compensating, Server):
    pass


class DanaDC(Compensating, DanaZero):
    pass


class GapAware(Penalising, Server):
    pass


class DanaGA(Penalising, DanaZero):
    pass


class StalenessAware(Server):
    def correct(self, u, d, sent, tau, rate):
        return d / (tau if tau > 0 else 1), 0 * d


class InverseDelay(Server):
    def correct(self, u, d, sent, tau, rate):
        return d / max(1, self.hyper.get("delay", self.n - 1)), 0 * d


class DelayAdaptive(Server):
    def correct(self, u, d, sent, tau, rate):
        return d * self.n / max(self.n, tau + 1), 0 * d


class SMEGA2(Server):
    count, sum = 0, 0.0

    def step(self, d, change):
        cycle = self.hyper["cycle"] or self.n
        self.count, self.sum = (self.count + 1) % cycle, self.sum + d
        u = d + self.gamma * self.v
        if self.count == 0:
            self.v = self.gamma * self.v + (1 - self.hyper["dampening"]) / cycle * self.sum
            self.sum = 0.0
        return u

    def view(self):
        cycle, s = self.hyper["cycle"] or self.n, self.count
        m = cycle * self.v
        if self.hyper["advanced"]:
            m = (cycle + s * (self.gamma - 1)) * self.v + s / cycle * self.sum
        return self.x - self.rate * self.gamma * m


def walk(server, events, gradient, rate_at):
    """(updates, d) parameters and views after each update, and the measures of each gradient by name.

    ``gradient(x, worker, step)``; ``rate_at(arrivals accepted before this update)``.
    """
    view, version, accepted, begun = server.x, 0, 0, 0
    held, read_at, steps = [view] * server.n, [0] * server.n, [0] * server.n
    path, views, rows = [], [], []
    for kind, i, *more in events:
        if kind == "read":
            held[i], read_at[i] = view, version
        elif kind == "reset":
            server.reset(i)
        elif kind == "cancel":
            steps[i] += 1
        else:
            rate, sent, before = rate_at(begun), held[i], server.x
            g = gradient(sent, i, steps[i])
            steps[i] += 1
            met = server.momentum(i)
            u = server.outgoing(i, g, sent)
            if kind == "apply":
                weight, closes = more
                part = weight * server.receive(i, u, sent, version - read_at[i], rate)
                server.total = part if server.total is None else server.total + part
                accepted += 1
                if closes:
                    server.close(rate)
                    view, version, begun = server.view(), version + 1, accepted
                    path.append(server.x)
                    views.append(view)
            away, size = np.linalg.norm(before - sent), np.linalg.norm(g)
            row = {"gap": away / np.sqrt(len(g)), "normalised_gap": away / size, "gradient_norm": size}
            row["update_norm"] = np.linalg.norm(server.x - before)
            row["effective_learning_rate"] = -(server.x - before) @ g / size**2
            if met is not None:
                row["momentum_norm"] = np.linalg.norm(met)
                row["momentum_cosine"] = met @ g / row["momentum_norm"] / size if met.any() else 0.0
            rows.append(row)
    return np.array(path), np.array(views), {k: np.array([row[k] for row in rows]) for k in rows[0]}
