"""Random requests with drafts of every source, compared with the same requests without any."""
