"""The tables and the figure of FedGCR, and the small vision transformer that ships."""
