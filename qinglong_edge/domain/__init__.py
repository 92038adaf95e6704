"""Decide what happens next: pure values in, pure values out."""
