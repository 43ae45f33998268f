"""What every way of agreeing must obey, as proofs that run: for tests, and for users."""
