"""How workers agree: one file per mode, each on the same six-method port."""
