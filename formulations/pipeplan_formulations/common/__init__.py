"""Parts that several formulations share."""
