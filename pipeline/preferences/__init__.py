"""Preferences: which rollouts are held against each other, and what a policy makes of such pairs."""
