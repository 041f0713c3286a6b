"""What the gateway decides: text to tokens to text, without sockets or clocks."""
