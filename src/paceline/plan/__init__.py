"""The resolved plan of a run: frozen, complete, and all that crosses the process boundary."""
