"""Schemas of what crosses a process boundary, one module per boundary. Records stay in `rolecast.types`."""
