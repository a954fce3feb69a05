"""Checks of arguments, optional packages, the progress bar."""
