"""CoDA: a planner and executors, each in a context of its own."""

from rolecast.methods.coda.method import Coda, CodaConfig

__all__ = ["Coda", "CodaConfig"]
