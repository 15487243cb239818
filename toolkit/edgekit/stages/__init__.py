"""Stages, one file each; the table by name is `edgekit.stage.STAGES`."""
