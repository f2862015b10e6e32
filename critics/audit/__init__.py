"""Measures a frozen critic against fresh continuations."""
