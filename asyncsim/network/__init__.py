"""Messages in motion: over which links they go, how they share them, and when they arrive."""
