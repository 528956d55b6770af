"""What the report says besides figures: what each run was, and its slowest requests."""
