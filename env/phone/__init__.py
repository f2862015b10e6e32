"""The phone scenario: an agent identifies a customer to the right department of a company."""
