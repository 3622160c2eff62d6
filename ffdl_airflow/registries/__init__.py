"""Where models are published."""
