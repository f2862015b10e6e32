"""Whether a frozen critic still holds for the actor as it moves."""
