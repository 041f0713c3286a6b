"""`optimist bench engines`: real servers, ours and others, on the same requests over HTTP."""
