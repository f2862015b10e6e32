"""A company's rules, and the tasks made from them."""
