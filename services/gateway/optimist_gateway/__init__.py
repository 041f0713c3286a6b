"""The API: text in, text out; tokens to and from the scheduler."""
