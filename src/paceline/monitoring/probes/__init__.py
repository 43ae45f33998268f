"""Probes of this machine: host, processes, connections, GPUs."""
