"""Feedback that a model writes: a server's, or the policy's own. Rules are the environments' own."""
