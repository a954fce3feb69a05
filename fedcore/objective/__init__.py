"""Objectives of n clients: losses of a network on data (`federation`) or quadratics (`quadratic`)."""

from .base import Objective

__all__ = ["Objective"]
