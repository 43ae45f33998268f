"""Pure synchronization rules: admission, assignment, averaging, balancing. No I/O, no clock, no RNG state."""
