"""A coordinator node: the pure Raft core and the replicated state, with disk, network, clock and clients.

A node is one process with one asyncio loop. One task (`Node.run`) owns Raft and the state machine: it takes
all input that has arrived, steps Raft, persists, sends, applies and replies, in that order. Service handlers
and the streams of peers run on the same loop and only append to its inbox or wait for a future, so there are
no locks. Writes to disk run on an executor with a single thread while the loop collects further input.

Three more tasks act on the leader only: worker leases and generations, which propose commands through the
same inbox, and torchft quorums. A task that fails ends the node (`Coordinator.ended`), and
so does a disk error: a node that cannot prove what it promised must not vote. A node that stops leading fails
the requests that wait for it, and clients turn to the new leader.
"""
