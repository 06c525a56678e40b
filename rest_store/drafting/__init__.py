"""The drafting side of one generation: a session, its sources, and
the calibration that scores candidates.
"""
