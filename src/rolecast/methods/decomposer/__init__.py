"""DecomposeR: plans as typed graphs; a planner and an answerer that are trained one after the other."""

from rolecast.methods.decomposer.config import DecomposerConfig
from rolecast.methods.decomposer.method import Decomposer

__all__ = ["Decomposer", "DecomposerConfig"]
