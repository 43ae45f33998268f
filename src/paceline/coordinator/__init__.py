"""The replicated control plane: who is in a run, which generation, which checkpoints are committed."""
