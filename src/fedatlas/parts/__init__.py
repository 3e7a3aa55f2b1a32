"""The parts of an algorithm: what users write, and what flows between server and clients."""
