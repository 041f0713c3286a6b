"""All kinds of decoders that transformers knows, each served and compared: `make models`."""
