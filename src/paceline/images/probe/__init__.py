"""How are images built, looked into and sent away? By the user's own container engine, as a process."""
