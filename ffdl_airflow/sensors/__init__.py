"""Sensors: they read, and never act."""
