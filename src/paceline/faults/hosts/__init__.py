"""Test hosts: network namespaces that share nothing but a switch, and faults of hosts and links.

`network.py` makes them, `host.py` is one host, `requirements.py` says what this machine lacks.
"""
