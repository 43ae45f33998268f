"""What did the user write? Flags, a file and PACELINE_* variables, with every problem at once."""
