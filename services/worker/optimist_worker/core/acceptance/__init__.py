"""Which tokens a pass emits: sampling, and the rules by which drafts are accepted."""
