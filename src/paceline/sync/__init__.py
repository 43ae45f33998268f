"""The pure rules by which workers agree. No IO, no time, no dice of their own."""
