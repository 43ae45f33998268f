"""Elastic workers: training that survives lost workers and takes in new ones.

A worker process has two threads. The training thread owns the replica and the training loop. The membership
thread runs an event loop of its own, owns the coordinator client, sends heartbeats and receives generations.
They share one condition variable: the membership thread stores the newest generation under it, and the
training thread waits on it between generations only. Inside a generation the training thread makes no
request to the coordinator; a wait for a peer checks whether the generation is over.

When a worker is lost or joins, the coordinator ends the generation. Each worker then undoes what was not
committed and enters the next generation with the same replica (generations.py); a worker without the newest
committed step receives it from one that has it. A worker that the coordinator has declared lost joins again
as a new incarnation. See docs/concepts/generations.md.
"""
