"""A shop whose mail and bookkeeping run in the background."""
