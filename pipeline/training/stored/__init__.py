"""Training on stored rollouts, without fresh ones: a file for each objective, and when to stop."""
