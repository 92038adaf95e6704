"""Carry approved actions to a durable outcome at most once on one small Linux machine."""

__version__ = "0.1.0"
