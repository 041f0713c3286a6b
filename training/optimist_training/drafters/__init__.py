"""`optimist train`: drafters of a target model, from its own answers."""
