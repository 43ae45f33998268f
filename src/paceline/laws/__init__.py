"""Laws of the synchronization strategies, as executable proofs for tests and for `paceline laws`."""
