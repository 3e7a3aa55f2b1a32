"""Encoders, which turn examples into embeddings."""
