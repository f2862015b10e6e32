"""The rollouts of a run as a page: what `vdapo view` serves or writes."""
