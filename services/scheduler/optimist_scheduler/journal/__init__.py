"""What a scheduler received and sent, in a file."""
