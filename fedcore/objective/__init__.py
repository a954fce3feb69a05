"""Objectives: what n clients minimise, by networks on data (`network`) or as quadratics (`quadratic`)."""

from .base import Objective

__all__ = ["Objective"]
