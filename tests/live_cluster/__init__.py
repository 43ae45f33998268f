"""Does what the tests show on a server of their own also hold on a real cluster? `make test-cluster`."""
