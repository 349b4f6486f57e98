"""Export of plans and time lines to the formats of other tools."""
