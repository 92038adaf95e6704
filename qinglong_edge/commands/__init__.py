"""Say what each command does, given an engine and checked arguments."""
