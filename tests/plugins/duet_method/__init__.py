"""A method of two slots in a distribution of its own: a scout searches, a teller answers, and each is trained by itself."""
