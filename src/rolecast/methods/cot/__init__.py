"""`cot`: thinks before it answers, from what the model knows."""

from rolecast.methods.cot.method import Cot, CotConfig

__all__ = ["Cot", "CotConfig"]
