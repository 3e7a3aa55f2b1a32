"""The doctor: whose data are unlike the others', whose are probably wrong, and what to do about it."""
