"""What turns examples into embeddings."""
