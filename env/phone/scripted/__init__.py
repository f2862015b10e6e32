"""Scripted callers of mixed quality."""
