"""Search engines of others in the place of an index, and pages of the web."""
