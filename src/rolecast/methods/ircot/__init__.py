"""`ircot`: reasons sentence by sentence, and searches with each of them."""

from rolecast.methods.ircot.method import Ircot, IrcotConfig

__all__ = ["Ircot", "IrcotConfig"]
