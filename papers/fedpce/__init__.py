"""FedPCE: Federated Personalized Client Embeddings (anonymous submission): its tables and figures."""
