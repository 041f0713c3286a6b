"""`optimist bench overhead`: what a token costs the services, without a model."""
