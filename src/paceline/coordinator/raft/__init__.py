"""The Raft consensus algorithm as a pure state machine: no I/O, no clock, no random numbers of its own."""
