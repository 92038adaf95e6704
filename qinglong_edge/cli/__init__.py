"""Turn argv into a command and an answer into text and an exit code."""
