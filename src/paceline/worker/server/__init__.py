"""Parameter servers: the pure core for a fixed set of workers, and a replicated pair for elastic runs.

core.py is called from one loop under every transport, and needs no lock. In an elastic run two server
processes hold the same parameters. In each of them one thread owns the state machine and handles one event
at a time from a queue; the threads of the connections (transport/elastic_store.py) and the membership thread
only put events into it. The primary sends an order to its backup before it carries the order out, and
answers a worker only when the order is safe. So every answered request survives the loss of the primary.

When the primary is lost, the coordinator makes the backup primary, and workers repeat their last request
there; tickets keep a request from being applied twice. A former primary that is still running is fenced: it
answers no worker. When both are lost, the next one starts from the newest checkpoint.
"""
