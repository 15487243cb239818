"""Transports: one file a way to a machine, found by `edgekit.transport.TRANSPORTS`."""
