"""Numbers to one self-contained HTML page: no script, no request, readable on a phone and in print."""
