"""The truth about requests: what they are, what they hold, what runs next."""
