"""Keep the facts."""
