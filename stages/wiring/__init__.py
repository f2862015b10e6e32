"""What joins env, critics and pipeline for the stages: no entry, no `STAGE`."""
