"""The artifact contract: plan, shards, ledger, checkpoints, and a manifest that is written last."""
