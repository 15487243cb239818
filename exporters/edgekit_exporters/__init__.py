"""Exporters: one file or folder a runtime. edgekit finds them by name and never imports them otherwise."""
