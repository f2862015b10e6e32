"""Fits a critic to labels, to convergence."""
