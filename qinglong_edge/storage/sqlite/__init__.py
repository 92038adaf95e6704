"""Keep the facts in one SQLite file that one process owns."""
