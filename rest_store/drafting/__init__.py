"""The drafting side of one generation: a session, its sources, and its calibration."""
