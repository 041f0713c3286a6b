"""The REST API in the shapes of OpenAI's."""
