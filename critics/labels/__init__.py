"""What is known of V(s): states to label, targets, checks."""
