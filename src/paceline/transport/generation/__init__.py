"""World of one generation of an elastic run: what its workers exchange, in shared memory or over TCP.

`ports.py` has the interface that strategies and the elastic worker see. `memory_world.py` implements it in
the shared memory of one host (`memory.py`), `network_world.py` over a full mesh of TCP connections
(`mesh.py`), which the workers of a generation open to each other's listening sockets (`listener.py`).
"""
