"""Configuration as written: flags, a file and PACELINE_* variables, with every problem at once."""
