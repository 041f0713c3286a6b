"""One model held by several processes."""
