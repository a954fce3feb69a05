"""`python -m fedbook`: tables and figures as batches of cells."""

from .reproduce import command

if __name__ == "__main__":
    raise SystemExit(command())
