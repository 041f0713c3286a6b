"""All services as processes, and the network between them."""
