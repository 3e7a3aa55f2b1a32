"""How a cohort of clients runs on this machine."""
