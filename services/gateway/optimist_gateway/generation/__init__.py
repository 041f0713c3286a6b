"""The life of a request: admission, preparation, choices."""
