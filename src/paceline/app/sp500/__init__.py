"""Daily closes to a file of samples for the task sp500."""
