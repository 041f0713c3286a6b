"""The same requests in virtual time: the real cores as jobs that cost what they are said to."""
