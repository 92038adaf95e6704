"""Hold the action types that this build carries."""
