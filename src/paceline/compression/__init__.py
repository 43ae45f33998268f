"""How fewer bytes travel: codecs, error memories, and means made of them."""
