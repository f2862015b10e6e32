"""A phone call as it is played: environment, tools, feedback, text."""
