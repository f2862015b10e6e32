"""Prompt styles: messages to text, text to actions; text to token ids and back."""
