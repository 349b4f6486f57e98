"""Lower bounds on what is still to come, by first layer and used devices."""
