"""Transports of tensors: the ports `Collective`, `Peers` and `ParameterStore`, and their adapters.

A collective is called by the training thread of each worker and has no threads of its own; all ranks make
the same calls in the same order. In shared memory each counter and each vector has one writer at a time, and
processes wait on semaphores or futexes, never on a lock that a dead process could hold. A parameter store
over TCP has a thread per connection on the server. It owns the connection, receives into the memory of its
worker and queues a request; one server loop owns the parameters, takes one request at a time, and hands the
answer back to the thread. A slow or frozen worker therefore blocks its own thread only.

Locks are local to one object: the table of open connections, the frames of one connection. No wait is
without a limit: a peer that stays silent longer than the plan's timeout raises PeerLostError in the worker
that waits. See ports.py for the guarantees that every adapter keeps.
"""
