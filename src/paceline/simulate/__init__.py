"""What would happen if? Pure: a profile and a seed in, a prediction out; nothing is started."""
