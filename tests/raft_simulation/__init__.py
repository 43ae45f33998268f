"""Whole Raft clusters in one process, on a virtual network and disk, with one seed for everything."""
