"""One file for each part of the exercise: what is predicted, what must have been seen, what is asked."""
