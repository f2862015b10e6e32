"""Everything that produces and grades episodes; knows no critic and no engine backend."""
