"""What the sinks for SQL servers share: prepared or staged transactions, and the proof of their commit."""
