"""What an omniscient caller needs: V*, d*, verdicts."""
