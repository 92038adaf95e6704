"""Name what the inside asks of the outside: protocols only."""
