"""What does an error code mean, and what is to be done? For `paceline explain` and the reference."""
