"""What is wrong with an image before it is built, and which least change mends it? Pure: opens nothing."""
