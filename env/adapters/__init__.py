"""The environments inside other libraries' training loops; each module needs its library, and no other."""
