"""Language models as folders: made, loaded, saved, digested."""
