"""How does a learner work through the exercise? What was done is read from folders, never believed."""
