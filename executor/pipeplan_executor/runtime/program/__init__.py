"""From a schedule to what every rank does, on paper: who runs what, in which order, and what is sent when. No torch."""
