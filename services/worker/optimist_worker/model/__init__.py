"""Models, their weights and what else lives on the model's device."""
