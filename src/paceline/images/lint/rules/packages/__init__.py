"""Rules about Python packages: names, releases, wheels, and builds against torch and CUDA."""
