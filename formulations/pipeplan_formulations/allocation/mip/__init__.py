"""The allocation problem of one depth as a linear model."""
