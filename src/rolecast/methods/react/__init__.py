"""`react`: thought, action, observation, in turns."""

from rolecast.methods.react.method import React, ReactConfig

__all__ = ["React", "ReactConfig"]
