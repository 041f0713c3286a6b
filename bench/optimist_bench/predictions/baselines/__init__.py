"""What `auto` is compared with: known ways to say how a text goes on, which no service offers."""
