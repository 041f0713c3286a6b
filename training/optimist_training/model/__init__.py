"""The bundled model: from its circuit to the checkpoint, and how right it is."""
