"""What a job takes of given hardware, before any of it is taken."""
