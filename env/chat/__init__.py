"""Prompt styles: messages to text, text to actions."""
