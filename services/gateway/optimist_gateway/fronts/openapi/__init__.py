"""The document that describes the REST API."""
