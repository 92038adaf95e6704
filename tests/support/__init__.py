"""Stand-ins for the machine and builders of values; shared by every suite."""
