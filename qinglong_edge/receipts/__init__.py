"""Receipts of local runs, in private files that are whole or absent, and never replaced."""
