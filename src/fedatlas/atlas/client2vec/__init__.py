"""Client2Vec's index: its network and how it is trained."""
