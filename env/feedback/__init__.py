"""Feedback on failed attempts."""
