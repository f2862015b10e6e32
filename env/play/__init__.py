"""Plays episodes: queue, chains, continuations."""
