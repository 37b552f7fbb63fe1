"""What every HTTP service shares: settings, logs, probes, metrics, draining, and the client that outlives a restart."""
