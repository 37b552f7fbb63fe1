"""DECOR: planner, filter and answerer around one curated memory."""

from rolecast.methods.decor.method import Decor, DecorConfig

__all__ = ["Decor", "DecorConfig"]
