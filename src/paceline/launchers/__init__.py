"""Where workers run. A launcher starts participants and tells what becomes of them."""
