"""Adapters that put other libraries' strategies under the laws."""
