"""DAC: a searcher and a generator that may abstain, each rewarded for what it did."""

from rolecast.methods.dac.config import DacConfig
from rolecast.methods.dac.method import Dac

__all__ = ["Dac", "DacConfig"]
