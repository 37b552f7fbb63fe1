"""`autorefine`: Search-R1's loop in which every observation is refined before anything else is said."""

from rolecast.methods.autorefine.method import AutoRefine, AutoRefineConfig

__all__ = ["AutoRefine", "AutoRefineConfig"]
