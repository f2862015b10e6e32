"""The core that everything shares: knows no environment and no critic."""
