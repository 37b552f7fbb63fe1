"""A method in a distribution of its own, as small as one gets: one role repeats the question."""
