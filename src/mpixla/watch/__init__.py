"""What sees, and what ends."""
