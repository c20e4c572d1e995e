"""Measurements: runs with torch, fitted profiles and their errors, and predictions beside measured times."""
