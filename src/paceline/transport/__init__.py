"""How tensors travel: two ports (Collective, ParameterStore) and their adapters."""
