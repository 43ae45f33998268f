"""Other libraries' ways of agreeing, brought to where the laws can try them."""
