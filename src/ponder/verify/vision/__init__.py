"""Verifiers of boxes, points and masks in images."""
