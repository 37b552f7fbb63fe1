"""A method of two slots in a distribution of its own: a planner writes the query, an answerer is trained on plans made before."""
