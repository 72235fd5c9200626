"""How all workers exchange their models: who sends what to whom, in motion and in closed form."""

from asyncsim.exchanges.exchange import Exchange, Exchanges, PartialExchange
from asyncsim.exchanges.schedules import KINDS, Schedule, Stage

__all__ = ["KINDS", "Exchange", "Exchanges", "PartialExchange", "Schedule", "Stage"]
