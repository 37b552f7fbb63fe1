"""`direct`: answers at once, from what the model knows."""

from rolecast.methods.direct.method import Direct, DirectConfig

__all__ = ["Direct", "DirectConfig"]
