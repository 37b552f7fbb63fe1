"""M-ASK: five roles around one structured knowledge state, rewarded turn by turn."""

from rolecast.methods.mask.method import Mask, MaskConfig

__all__ = ["Mask", "MaskConfig"]
