"""Definitions: one readable file per table or figure, or per family that shares cells; each has a list `TABLES`."""
