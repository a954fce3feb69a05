"""`python -m fedcore.reproduce`: the command of the book, `fedbook.reproduce`, by its old name."""

from fedbook.reproduce import command, main, run_cell

__all__ = ["command", "main", "run_cell"]

if __name__ == "__main__":
    raise SystemExit(command())
