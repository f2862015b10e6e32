"""Feedback as a tool: any environment, in which the policy itself may ask for feedback, at a price."""
