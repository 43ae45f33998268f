"""Container images for training: check and fix a Dockerfile, build it, probe the image, push it."""
