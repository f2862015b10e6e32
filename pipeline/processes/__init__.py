"""Worker processes, and weights in memory that they share."""
