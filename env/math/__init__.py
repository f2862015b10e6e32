"""Math: tasks, final answers, verdicts on lines."""
