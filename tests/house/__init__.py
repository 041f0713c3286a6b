"""The measurements of `make house`: how large the code is, and how much of it a request crosses."""
