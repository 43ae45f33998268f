"""The Raft consensus algorithm as a pure state machine: no input, no output, no clock, no dice of its own."""
