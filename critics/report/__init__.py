"""The critic-quality report and its gate."""
