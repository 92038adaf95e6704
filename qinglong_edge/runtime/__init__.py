"""Drive one bounded cycle after another."""
