"""What everything else is made of: columns, outputs, counters and KV blocks."""
